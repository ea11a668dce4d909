package postgres

import "fmt"

// seal returns an outcome as it is stored, and whether that is sealed. After
// an error it is nil.
func (s *Store) seal(outcome []byte) (stored []byte, sealed bool, err error) {
	if outcome == nil || s.opt.Seal == nil {
		return outcome, false, nil
	}
	stored, err = s.opt.Seal(outcome)
	if err != nil {
		return nil, false, fmt.Errorf("postgres: sealing an outcome: %w", err)
	}
	return stored, true, nil
}

// unseal undoes seal.
func (s *Store) unseal(stored []byte, sealed bool) ([]byte, error) {
	if stored == nil || !sealed {
		return stored, nil
	}
	if s.opt.Unseal == nil {
		return nil, fmt.Errorf("unsealing an outcome: it was sealed, and Options.Unseal is not set")
	}
	outcome, err := s.opt.Unseal(stored)
	if err != nil {
		return nil, fmt.Errorf("unsealing an outcome: %w", err)
	}
	return outcome, nil
}
