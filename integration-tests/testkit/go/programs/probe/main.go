// probe is the workload of the test clusters: one static program in an image
// that holds nothing else.
//
// Without arguments it prints what it can see (its environment's NVIDIA_
// variables and the device nodes /dev/nvidia*), then serves the same over HTTP
// on $PORT (8080 when unset): / says what it sees, /healthz answers ok,
// /bytes?n=N streams N bytes, and /end ends it, content.
//
// There is no shell in the image, so `kubectl exec` gets a few words instead:
// env, ls DIR, cat FILE, get URL, resolve NAME, see, and serve SECONDS, which
// ends by itself.
//
// forward ADDRESS is for the host: it accepts from the listening socket that it
// has as standard input and joins each connection with one to ADDRESS.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const chunk = 64 << 10

// began is when the program started, to say so to the millisecond.
var began = time.Now()

func main() {
	if len(os.Args) > 1 {
		if err := word(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
		return
	}
	see(os.Stdout)
	serve(0)
}

// word runs one command for `kubectl exec`.
func word(name string, args []string) error {
	argument := func() (string, error) {
		if len(args) != 1 {
			return "", fmt.Errorf("%s takes one argument, got %d", name, len(args))
		}
		return args[0], nil
	}
	switch name {
	case "see":
		see(os.Stdout)
		return nil
	case "serve":
		text, err := argument()
		if err != nil {
			return err
		}
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 1 {
			return fmt.Errorf("serve takes whole seconds from 1, got %q", text)
		}
		see(os.Stdout)
		serve(time.Duration(seconds) * time.Second)
		return nil
	case "env":
		for _, e := range os.Environ() {
			fmt.Println(e)
		}
		return nil
	case "ls":
		dir, err := argument()
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			fmt.Println(e.Name())
		}
		return err
	case "cat":
		path, err := argument()
		if err != nil {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(os.Stdout, file)
		return err
	case "get":
		url, err := argument()
		if err != nil {
			return err
		}
		response, err := (&http.Client{Timeout: 20 * time.Second}).Get(url)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(os.Stdout, response.Body)
		return err
	case "resolve":
		host, err := argument()
		if err != nil {
			return err
		}
		addresses, err := net.LookupHost(host)
		for _, address := range addresses {
			fmt.Println(address)
		}
		return err
	case "forward":
		address, err := argument()
		if err != nil {
			return err
		}
		listener, err := net.FileListener(os.Stdin)
		if err != nil {
			return fmt.Errorf("standard input is not a listening socket: %w", err)
		}
		return forward(listener, address)
	}
	return fmt.Errorf("unknown word %q: see, serve SECONDS, env, ls DIR, cat FILE, get URL, resolve NAME or forward ADDRESS", name)
}

// forward joins every connection it accepts with one of its own to address.
func forward(listener net.Listener, address string) error {
	for {
		here, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer here.Close()
			there, err := net.DialTimeout("tcp", address, 10*time.Second)
			if err != nil {
				return
			}
			defer there.Close()
			pass := func(to, from net.Conn) {
				io.Copy(to, from)
				to.(*net.TCPConn).CloseWrite()
			}
			go pass(there, here)
			pass(here, there)
		}()
	}
}

// see writes when this began, one line for each GPU variable and one for each GPU device node.
func see(w io.Writer) {
	host, err := os.Hostname()
	if err != nil {
		host = err.Error()
	}
	fmt.Fprintf(w, "host=%s\n", host)
	fmt.Fprintf(w, "started=%d\n", began.UnixMilli())
	variables := os.Environ()
	sort.Strings(variables)
	for _, e := range variables {
		if strings.HasPrefix(e, "NVIDIA_") {
			fmt.Fprintln(w, e)
		}
	}
	nodes, err := filepath.Glob("/dev/nvidia*")
	if err != nil {
		log.Fatal(err) // The pattern is constant: only a bad pattern fails.
	}
	sort.Strings(nodes)
	for _, node := range nodes {
		fmt.Fprintf(w, "device=%s\n", node)
	}
}

// stopped is what a shell says of a program that SIGTERM ended.
const stopped = 128 + int(syscall.SIGTERM)

// serve answers for the given time, or until it is told to stop when that is 0. Who is told to stop before its time has not
// done its work, and says so by its exit code: else a Job would count it as done.
func serve(limit time.Duration) {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	http.HandleFunc("/bytes", stream)
	http.HandleFunc("/end", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ends")
		// The answer is to be on its way before.
		time.AfterFunc(200*time.Millisecond, func() { os.Exit(0) })
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		see(w)
	})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if limit > 0 {
		time.AfterFunc(limit, func() { os.Exit(0) })
	}
	go func() {
		<-stop
		if limit > 0 {
			os.Exit(stopped)
		}
		os.Exit(0)
	}()
	log.Printf("listening on :%s", port)
	log.Fatal(http.ListenAndServe(":"+port, nil))
}

func stream(w http.ResponseWriter, r *http.Request) {
	left, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
	if err != nil || left < 0 {
		http.Error(w, "n must be a number of bytes", http.StatusBadRequest)
		return
	}
	zeros := make([]byte, chunk)
	for left > 0 {
		k := min(left, chunk)
		if _, err := w.Write(zeros[:k]); err != nil {
			return
		}
		left -= k
	}
}
