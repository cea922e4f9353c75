"""What tests of several kinds share: clusters of real processes, and Kafka clients that keep count."""
