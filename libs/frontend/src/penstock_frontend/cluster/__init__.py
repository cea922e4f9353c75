"""Kafka APIs that any process with metadata answers, itself or by asking the active controller.

`apis`              Kafka APIs that any process with metadata answers
`auto_create`       Topics that clients ask for and that are not there, made with the cluster's defaults
`configs`           DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources
`controller_calls`  Calls to the active controller on behalf of clients, and waiting for what they changed
`describe`          DescribeCluster and DescribeTopicPartitions, from a metadata image, and what a gateway
`find_coordinator`  FindCoordinator
`quorum`            DescribeQuorum, UpdateFeatures, and client quotas, of which there are none
`reassignments`     AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders and
`topics`            CreateTopics, DeleteTopics and CreatePartitions
"""
