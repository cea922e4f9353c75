// A Kafka client of Go, driven from outside: one JSON object per line on stdin, one per answer on stdout, in order
// (the form stands in conformance/frame.py). The end of stdin ends the process.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

type command struct {
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args"`
}

type operation func(json.RawMessage) (any, error)

// lacks is answered for what this client has no call for.
type lacks struct{ what string }

func (l lacks) Error() string { return l.what }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: franz-go BOOTSTRAP")
		os.Exit(2)
	}
	d := newDriver(os.Args[1])
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked command
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		if err := answers.Encode(d.answer(asked)); err != nil {
			return
		}
	}
}

func (d *driver) answer(asked command) map[string]any {
	run, known := d.operations[asked.Op]
	if !known {
		return map[string]any{"unsupported": "has no word " + asked.Op + " in this suite"}
	}
	result, err := run(asked.Args)
	var none lacks
	if errors.As(err, &none) {
		return map[string]any{"unsupported": none.what}
	}
	if err != nil {
		return map[string]any{"error": name(err), "message": err.Error()}
	}
	return map[string]any{"ok": result}
}

// name is Kafka's name of an error, or LOCAL_ and Go's type of it.
func name(err error) string {
	var broker *kerr.Error
	if errors.As(err, &broker) {
		return broker.Message
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	kind := reflect.TypeOf(err).String()
	return "LOCAL_" + kind[strings.LastIndex(kind, ".")+1:]
}

// parsed gives an operation its arguments.
func parsed[A any](run func(A) (any, error)) operation {
	return func(raw json.RawMessage) (any, error) {
		var arguments A
		if err := json.Unmarshal(raw, &arguments); err != nil {
			return nil, err
		}
		return run(arguments)
	}
}

// toBytes: strings of the suite have a character from U+0000 to U+00FF for each byte.
func toBytes(text *string) []byte {
	if text == nil {
		return nil
	}
	found := make([]byte, 0, len(*text))
	for _, char := range *text {
		found = append(found, byte(char))
	}
	return found
}

func toText(data []byte) *string {
	if data == nil {
		return nil
	}
	runes := make([]rune, len(data))
	for i, one := range data {
		runes[i] = rune(one)
	}
	text := string(runes)
	return &text
}
