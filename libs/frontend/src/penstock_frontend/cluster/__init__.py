"""Kafka APIs that any process with metadata answers, itself or by asking the active controller.

`acls`              DescribeAcls, CreateAcls and DeleteAcls: rules of who may do what
`address_view`      Where clients are told that nodes are
`apis`              Kafka APIs that any process with metadata answers
`auto_create`       topics that clients ask for and that are not there, made with the cluster's defaults
                    (auto.create.topics.enable)
`configs`           DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources
`controller_calls`  calls to the active controller on behalf of clients, and waiting for what they changed
`describe`          DescribeCluster and DescribeTopicPartitions, from a metadata image, and what a gateway
                    says of log directories
`find_coordinator`  FindCoordinator: the leader of a group's partition, from metadata
`lost_nodes`        nodes that died and are brokers to clients of librdkafka all the same
`metadata_answers`  Metadata: answers made from the image, and kept for those who are to have the same
`quorum`            DescribeQuorum and UpdateFeatures
`quotas`            DescribeClientQuotas and AlterClientQuotas: what users, client ids and addresses may take
`reassignments`     AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders and UnregisterBroker
`topics`            CreateTopics, DeleteTopics and CreatePartitions
`users`             DescribeUserScramCredentials and AlterUserScramCredentials: who may sign in, and by what
"""
