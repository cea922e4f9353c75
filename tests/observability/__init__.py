"""What an operator sees of a cluster: metrics, alerts and dashboards, held against a real cluster and Prometheus."""
