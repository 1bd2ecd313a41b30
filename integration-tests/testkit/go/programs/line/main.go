// line makes the line between two clusters as bad as lines between institutions are, and measures it. For kernels that
// have no netem.
//
// impair [-delay D] [-jitter D] [-loss PERCENT] makes the TUN device line0 in the network that it runs in: what is routed
// into the device comes out of it again after the delay and up to the jitter, in order, less what is lost. It ends when it
// is told to, and the device with it.
//
// ping [-count N] [-every D] ADDRESS sends echo requests and prints how many were answered, and how fast.
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	device = "line0"
	// What a packet can be at most, for a TUN device cuts what is larger.
	largest = 1 << 16
	// Packets that wait at the same time. A router with full buffers loses packets, too.
	waiting = 16384
	slowest = 10 * time.Second
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "line:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("give a word: impair or ping")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	switch args[0] {
	case "impair":
		var line impairment
		flags.DurationVar(&line.delay, "delay", 0, "how long each packet takes, each way, 0 to 10s")
		flags.DurationVar(&line.jitter, "jitter", 0, "how much longer it may take, 0 to 10s")
		flags.Float64Var(&line.loss, "loss", 0, "percent of the packets that are lost, each way")
		flags.Parse(args[1:])
		if err := line.check(flags.Args()); err != nil {
			return err
		}
		return line.run()
	case "ping":
		count := flags.Int("count", 100, "how many, 1 to 10000")
		every := flags.Duration("every", 10*time.Millisecond, "from one to the next")
		flags.Parse(args[1:])
		if flags.NArg() != 1 || *count < 1 || *count > 10_000 || *every <= 0 {
			return errors.New("ping takes one address, -count from 1 to 10000 and -every over 0")
		}
		return ping(flags.Arg(0), *count, *every)
	}
	return fmt.Errorf("unknown word %q: impair or ping", args[0])
}

// impairment is what the line does to packets, each way.
type impairment struct {
	delay, jitter time.Duration
	loss          float64
}

func (i impairment) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("impair takes options alone, not %q", rest)
	}
	for name, d := range map[string]time.Duration{"delay": i.delay, "jitter": i.jitter} {
		if d < 0 || d > slowest {
			return fmt.Errorf("-%s is %s: give 0 to %s", name, d, slowest)
		}
	}
	if !(i.loss >= 0 && i.loss <= 100) {
		return fmt.Errorf("-loss is %g: give a percentage, 0 to 100", i.loss)
	}
	return nil
}

// tun makes the device. It goes when the file is closed.
func tun() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(device)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, fmt.Errorf("cannot make the device %s: %w", device, err)
	}
	// So that reads wait in Go's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), device), nil
}

type packet struct {
	due   time.Time
	bytes []byte
}

func (i impairment) run() error {
	line, err := tun()
	if err != nil {
		return err
	}
	queue := make(chan packet, waiting)
	go func() {
		for next := range queue {
			time.Sleep(time.Until(next.due))
			// Refused while the device is not up yet or any more: lost.
			line.Write(next.bytes)
		}
	}()
	var last time.Time
	buffer := make([]byte, largest)
	for {
		n, err := line.Read(buffer)
		if err != nil {
			return fmt.Errorf("cannot read from %s: %w", device, err)
		}
		if rand.Float64()*100 < i.loss {
			continue
		}
		due := time.Now().Add(i.delay)
		if i.jitter > 0 {
			due = due.Add(rand.N(i.jitter))
		}
		// None overtakes another: TCP would take that for loss.
		if due.Before(last) {
			due = last
		}
		last = due
		select {
		case queue <- packet{due, append([]byte(nil), buffer[:n]...)}:
		default:
		}
	}
}

// ping sends ICMP echo requests (RFC 792); the system at the address answers.
func ping(address string, count int, every time.Duration) error {
	to, err := net.ResolveIPAddr("ip4", address)
	if err != nil {
		return err
	}
	connection, err := net.DialIP("ip4:icmp", nil, to)
	if err != nil {
		return fmt.Errorf("cannot ping %q: %w", address, err)
	}
	defer connection.Close()
	began := time.Now()
	sent := make([]atomic.Int64, count) // since then
	id := uint16(os.Getpid())
	go func() {
		for n := range count {
			sent[n].Store(int64(time.Since(began)))
			connection.Write(echo(id, uint16(n)))
			time.Sleep(every)
		}
	}()
	// The slowest answer to the last of them.
	connection.SetReadDeadline(began.Add(time.Duration(count)*every + 2*time.Second))
	times := make(map[uint16]time.Duration, count)
	buffer := make([]byte, largest)
	for len(times) < count {
		n, _, err := connection.ReadFrom(buffer) // without the header of IP
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			return err
		}
		// An answer has type 0; other systems' have another id.
		if answer := buffer[:n]; n >= 8 && answer[0] == 0 && binary.BigEndian.Uint16(answer[4:]) == id {
			number := binary.BigEndian.Uint16(answer[6:])
			if int(number) < count {
				times[number] = time.Since(began) - time.Duration(sent[number].Load())
			}
		}
	}
	least, sum := time.Duration(0), time.Duration(0)
	for _, took := range times {
		if least == 0 || took < least {
			least = took
		}
		sum += took
	}
	fmt.Printf("sent=%d answered=%d least_ms=%d mean_ms=%d\n", count, len(times), least.Milliseconds(), sum.Milliseconds()/int64(max(1, len(times))))
	return nil
}

func echo(id, number uint16) []byte {
	message := []byte{8, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(message[4:], id)
	binary.BigEndian.PutUint16(message[6:], number)
	// The checksum of RFC 1071 over a header whose other half is zero.
	sum := uint32(8<<8) + uint32(id) + uint32(number)
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	return message
}
