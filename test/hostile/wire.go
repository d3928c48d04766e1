package main

import (
	"bytes"
	"encoding/binary"
	"net"
)

// frame is one of HTTP/2.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2], b[3], b[4] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	return append(b, payload...)
}

// field is a header of n bytes, as it goes over the wire.
func field(name string, n int) []byte {
	b := append([]byte{0, byte(len(name))}, name...)
	return append(append(b, byte(n)), bytes.Repeat([]byte(mark[:1]), n)...)
}

// flood begins a session with first and says b for ever, reading what comes.
func flood(c net.Conn, first, b []byte) {
	go drain(c)
	block := bytes.Repeat(b, 1+(64<<10)/len(b))
	if _, err := c.Write(append(frame(4, 0, 0, nil), first...)); err != nil {
		return
	}
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

func drain(c net.Conn) {
	b := make([]byte, 64<<10)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

func garbage(c net.Conn) {
	go drain(c)
	b := bytes.Repeat([]byte("HTTP/1.1 200 "+mark+"\r\n\r\n"), 1000)
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// streams says something on every stream there could be.
func streams(c net.Conn) {
	go drain(c)
	b := frame(4, 0, 0, nil)
	for n := uint32(1); ; n++ {
		b = append(b, frame(1, 4, n, []byte{0x88})...)
		b = append(b, frame(0, 0, n, []byte(mark))...)
		if len(b) > 64<<10 {
			if _, err := c.Write(b); err != nil {
				return
			}
			b = b[:0]
		}
	}
}
