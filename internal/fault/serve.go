package fault

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server is a [Layer] that listens on a loopback port.
type Server struct {
	*Layer
	// URL is where clients connect, without a path.
	URL string

	http   *http.Server
	served chan error
	conns  sync.WaitGroup
}

// Serve starts a layer in front of upstream on a free loopback port. Close
// the result to stop it.
func Serve(upstream string, opts *Options) (*Server, error) {
	return ServeOn("127.0.0.1:0", upstream, opts)
}

// ServeOn is [Serve] with an address to listen on.
func ServeOn(addr, upstream string, opts *Options) (*Server, error) {
	layer, err := New(upstream, opts)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("fault layer: %w", err)
	}
	s := &Server{Layer: layer, URL: "http://" + ln.Addr().String(), served: make(chan error, 1)}
	s.http = &http.Server{
		Handler:           layer,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // aborted requests are its business
		ConnState:         s.count,
	}
	go func() { s.served <- s.http.Serve(ln) }()
	return s, nil
}

// count keeps track of the goroutines that serve connections.
func (s *Server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.conns.Done()
	}
}

// Close stops listening, ends every connection and returns when nothing of
// the server is left running. It must be called once.
func (s *Server) Close() error {
	err := s.http.Close()
	if serr := <-s.served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	s.conns.Wait()
	return errors.Join(err, s.Layer.Close())
}
