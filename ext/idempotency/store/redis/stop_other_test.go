//go:build !unix

package redis_test

import "errors"

func (s *server) stop() error { return errors.ErrUnsupported }

func (s *server) resume() error { return errors.ErrUnsupported }
