package redis

import "time"

// Skew makes the store see the server's clock moved by what now returns, and
// returns a function that makes those who wait look at their records again,
// as if time had passed for them too.
func (s *Store) Skew(by func() time.Duration) (look func()) {
	s.skew = by
	return func() {
		s.listener.mu.Lock()
		defer s.listener.mu.Unlock()
		for _, topic := range s.listener.topics {
			for w := range topic {
				w.again()
			}
		}
	}
}

// InfoField reads one field of INFO's text.
func InfoField(info, name string) string { return infoField(info, name) }
