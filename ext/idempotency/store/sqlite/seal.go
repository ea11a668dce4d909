package sqlite

import (
	"errors"
	"fmt"
)

// What is stored of an outcome is one byte that says how, and the bytes.
const (
	blobPlain  = 'p'
	blobSealed = 's' // of the digest of its record and the outcome
)

var errBlob = errors.New("sqlite: a stored outcome cannot be read")

// seal makes what is stored of an outcome; nil of nil. What is encrypted names
// its record, so that it cannot be put into another one.
func (s *Store) seal(d digest, outcome []byte) ([]byte, error) {
	if outcome == nil {
		return nil, nil
	}
	if s.opt.Seal == nil {
		return append([]byte{blobPlain}, outcome...), nil
	}
	sealed, err := s.opt.Seal(append(d[:], outcome...))
	if err != nil {
		return nil, fmt.Errorf("sqlite: sealing an outcome: %w", err)
	}
	return append([]byte{blobSealed}, sealed...), nil
}

// unseal undoes seal. An outcome that cannot be opened is an error and not a
// missing one: the key may come back.
func (s *Store) unseal(d digest, blob []byte) ([]byte, error) {
	switch {
	case blob == nil:
		return nil, nil
	case len(blob) > 0 && blob[0] == blobPlain:
		return blob[1:], nil
	case len(blob) == 0 || blob[0] != blobSealed:
		return nil, errBlob
	case s.opt.Unseal == nil:
		return nil, fmt.Errorf("%w: it is sealed, and Options.Unseal is not set", errBlob)
	}
	plain, err := s.opt.Unseal(blob[1:])
	if err != nil {
		return nil, fmt.Errorf("sqlite: opening an outcome: %w", err)
	}
	if len(plain) < len(d) || digest(plain[:len(d)]) != d {
		return nil, fmt.Errorf("%w: it belongs to another record", errBlob)
	}
	return plain[len(d):], nil
}
