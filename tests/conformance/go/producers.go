package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const callTimeout = 30 * time.Second

type record struct {
	Value       *string     `json:"value"`
	Key         *string     `json:"key"`
	Headers     [][]*string `json:"headers"`
	TimestampMs *int64      `json:"timestamp_ms"`
	Partition   int32       `json:"partition"`
}

type named struct {
	Name string `json:"name"`
}

type opening struct {
	Name     string   `json:"name"`
	Settings settings `json:"settings"`
}

// settings that this driver knows: another one makes the operation fail.
type settings struct {
	TransactionalID      string `json:"transactional_id"`
	TransactionTimeoutMs int64  `json:"transaction_timeout_ms"`
	LingerMs             int64  `json:"linger_ms"`
	Group                string `json:"group"`
	Reset                string `json:"reset"`
	Isolation            string `json:"isolation"`
}

func (d *driver) registerProducers() {
	d.operations["open_producer"] = parsed(d.openProducer)
	d.operations["close_producer"] = parsed(func(a named) (any, error) {
		d.producers[a.Name].Close()
		delete(d.producers, a.Name)
		return nil, nil
	})
	d.operations["init_transactions"] = parsed(func(a named) (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		_, _, err := d.producers[a.Name].ProducerID(ctx)
		return nil, err
	})
	d.operations["begin"] = parsed(func(a named) (any, error) {
		return nil, d.producers[a.Name].BeginTransaction()
	})
	d.operations["commit_transaction"] = parsed(func(a named) (any, error) {
		return nil, end(d.producers[a.Name], kgo.TryCommit)
	})
	d.operations["abort_transaction"] = parsed(func(a named) (any, error) {
		return nil, end(d.producers[a.Name], kgo.TryAbort)
	})
	d.operations["send"] = parsed(d.send)
	d.operations["send_offsets"] = func(json.RawMessage) (any, error) {
		return nil, lacks{"puts offsets into a transaction only from the group of the same client (GroupTransactSession)"}
	}
	d.operations["copy"] = parsed(d.copy)
}

func (d *driver) openProducer(a opening) (any, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(d.bootstrap),
		kgo.TransactionalID(a.Settings.TransactionalID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(time.Duration(a.Settings.LingerMs) * time.Millisecond),
	}
	if a.Settings.TransactionTimeoutMs > 0 {
		timeout := time.Duration(a.Settings.TransactionTimeoutMs) * time.Millisecond
		options = append(options, kgo.TransactionTimeout(timeout))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	d.producers[a.Name] = client
	return nil, nil
}

func end(client *kgo.Client, how kgo.TransactionEndTry) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if how == kgo.TryAbort {
		if err := client.AbortBufferedRecords(ctx); err != nil {
			return err
		}
	} else if err := client.Flush(ctx); err != nil {
		return err
	}
	return client.EndTransaction(ctx, how)
}

type sending struct {
	Name    string   `json:"name"`
	Topic   string   `json:"topic"`
	Records []record `json:"records"`
}

func (d *driver) send(a sending) (any, error) {
	records := make([]*kgo.Record, len(a.Records))
	for i, one := range a.Records {
		records[i] = &kgo.Record{
			Topic: a.Topic, Partition: one.Partition, Key: toBytes(one.Key), Value: toBytes(one.Value),
		}
		if one.TimestampMs != nil {
			records[i].Timestamp = time.UnixMilli(*one.TimestampMs)
		}
		for _, header := range one.Headers {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: *header[0], Value: toBytes(header[1])})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	answers := make(map[*kgo.Record]any)
	for _, result := range d.producers[a.Name].ProduceSync(ctx, records...) {
		if result.Err != nil {
			answers[result.Record] = map[string]any{"error": name(result.Err)}
		} else {
			answers[result.Record] = map[string]any{"partition": result.Record.Partition, "offset": result.Record.Offset}
		}
	}
	told := make([]any, len(records))
	for i, one := range records {
		told[i] = answers[one]
	}
	return told, nil
}

type copying struct {
	Name       string `json:"name"`
	Source     string `json:"source"`
	Sink       string `json:"sink"`
	Count      int    `json:"count"`
	Batch      int    `json:"batch"`
	AbortEvery int    `json:"abort_every"`
}

// copy is the loop of the client's own documentation.
func (d *driver) copy(a copying) (any, error) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(d.bootstrap),
		kgo.TransactionalID(a.Name),
		kgo.ConsumerGroup(a.Name),
		kgo.ConsumeTopics(a.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	ctx := context.Background()
	for done, turn := 0, 0; done < a.Count; {
		records := session.PollRecords(ctx, a.Batch).Records()
		if len(records) == 0 {
			continue
		}
		turn++
		if err := session.Begin(); err != nil {
			return nil, err
		}
		for _, one := range records {
			value := append(append([]byte("<"), one.Value...), '>')
			session.Produce(ctx, &kgo.Record{Topic: a.Sink, Partition: one.Partition, Value: value}, nil)
		}
		how := kgo.TransactionEndTry(turn%a.AbortEvery != 0)
		committed, err := session.End(ctx, how)
		if err != nil {
			return nil, err
		}
		if committed {
			done += len(records)
		}
	}
	return nil, nil
}
