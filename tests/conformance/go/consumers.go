package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type consumer struct {
	client    *kgo.Client
	group     string
	isolation int8
}

type driver struct {
	bootstrap  string
	operations map[string]operation
	producers  map[string]*kgo.Client
	consumers  map[string]*consumer
	asker      *kgo.Client
	admin      *kadm.Client
}

func newDriver(bootstrap string) *driver {
	asker, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		panic(err)
	}
	d := &driver{
		bootstrap: bootstrap, operations: map[string]operation{}, producers: map[string]*kgo.Client{},
		consumers: map[string]*consumer{}, asker: asker, admin: kadm.NewClient(asker),
	}
	d.registerProducers()
	d.registerConsumers()
	d.registerAdmin()
	return d
}

func (d *driver) registerConsumers() {
	d.operations["open_consumer"] = parsed(d.openConsumer)
	d.operations["close_consumer"] = parsed(func(a named) (any, error) {
		d.consumers[a.Name].client.Close()
		delete(d.consumers, a.Name)
		return nil, nil
	})
	d.operations["assign"] = parsed(d.assign)
	d.operations["poll"] = parsed(d.poll)
	d.operations["watermarks"] = parsed(d.watermarks)
	d.operations["offsets_for_times"] = parsed(d.offsetsForTimes)
}

func isolationLevel(named string) int8 {
	if named == "read_committed" {
		return 1
	}
	return 0
}

func (d *driver) openConsumer(a opening) (any, error) {
	if a.Settings.Group != "" {
		return nil, lacks{"joins groups in this suite only by a GroupTransactSession"}
	}
	level := isolationLevel(a.Settings.Isolation)
	reading := kgo.ReadUncommitted()
	if level == 1 {
		reading = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(d.bootstrap),
		kgo.FetchIsolationLevel(reading),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	d.consumers[a.Name] = &consumer{client: client, isolation: level}
	return nil, nil
}

type assigning struct {
	Name      string  `json:"name"`
	Positions [][]any `json:"positions"`
}

func (d *driver) assign(a assigning) (any, error) {
	wanted := map[string]map[int32]kgo.Offset{}
	for _, position := range a.Positions {
		topic, partition := position[0].(string), int32(position[1].(float64))
		offset := kgo.NewOffset()
		switch at := position[2].(type) {
		case float64:
			offset = offset.At(int64(at))
		case string:
			if at == "end" {
				offset = offset.AtEnd()
			} else {
				offset = offset.AtStart()
			}
		default:
			return nil, lacks{"takes no partition at its committed offset"}
		}
		if wanted[topic] == nil {
			wanted[topic] = map[int32]kgo.Offset{}
		}
		wanted[topic][partition] = offset
	}
	d.consumers[a.Name].client.AddConsumePartitions(wanted)
	return nil, nil
}

type polling struct {
	Name      string `json:"name"`
	Count     int    `json:"count"`
	TimeoutMs int64  `json:"timeout_ms"`
}

func (d *driver) poll(a polling) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.TimeoutMs)*time.Millisecond)
	defer cancel()
	found := []any{}
	for ctx.Err() == nil && (a.Count == 0 || len(found) < a.Count) {
		most := a.Count - len(found)
		if a.Count == 0 {
			most = 10_000
		}
		fetches := d.consumers[a.Name].client.PollRecords(ctx, most)
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return nil, failed.Err
			}
		}
		fetches.EachRecord(func(r *kgo.Record) { found = append(found, told(r)) })
	}
	return found, nil
}

func told(r *kgo.Record) map[string]any {
	headers := []any{}
	for _, header := range r.Headers {
		headers = append(headers, []any{header.Key, toText(header.Value)})
	}
	kind := map[int8]string{0: "create", 1: "append"}[r.Attrs.TimestampType()]
	return map[string]any{
		"topic": r.Topic, "partition": r.Partition, "offset": r.Offset, "key": toText(r.Key), "value": toText(r.Value),
		"headers": headers, "timestamp_ms": r.Timestamp.UnixMilli(), "timestamp_type": kind,
	}
}

// listed asks for an offset as a consumer does: -1 is the end, -2 the start, else the first of that time or later.
func (d *driver) listed(topic string, partition int32, at int64, isolation int8) (int64, int64, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	request.IsolationLevel = isolation
	one := kmsg.NewListOffsetsRequestTopicPartition()
	one.Partition, one.Timestamp, one.CurrentLeaderEpoch = partition, at, -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic, asked.Partitions = topic, append(asked.Partitions, one)
	request.Topics = append(request.Topics, asked)
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, d.asker)
	if err != nil {
		return 0, 0, err
	}
	for _, t := range response.Topics {
		for _, p := range t.Partitions {
			return p.Offset, p.Timestamp, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, 0, fmt.Errorf("no partition in the answer")
}

type place struct {
	Name      string `json:"name"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
}

func (d *driver) watermarks(a place) (any, error) {
	low, _, err := d.listed(a.Topic, a.Partition, -2, d.consumers[a.Name].isolation)
	if err != nil {
		return nil, err
	}
	high, _, err := d.listed(a.Topic, a.Partition, -1, d.consumers[a.Name].isolation)
	return []int64{low, high}, err
}

type timing struct {
	Name  string  `json:"name"`
	Times [][]any `json:"times"`
}

func (d *driver) offsetsForTimes(a timing) (any, error) {
	found := []any{}
	for _, asked := range a.Times {
		topic, partition := asked[0].(string), int32(asked[1].(float64))
		offset, _, err := d.listed(topic, partition, int64(asked[2].(float64)), d.consumers[a.Name].isolation)
		if err != nil {
			return nil, err
		}
		found = append(found, []any{topic, partition, orNone(offset)})
	}
	return found, nil
}

func orNone(offset int64) any {
	if offset < 0 {
		return nil
	}
	return offset
}

func sorted(rows [][]any) [][]any {
	sort.Slice(rows, func(i, j int) bool { return fmt.Sprint(rows[i]...) < fmt.Sprint(rows[j]...) })
	return rows
}
