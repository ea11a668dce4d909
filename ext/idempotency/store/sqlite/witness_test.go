package sqlite

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestATestimonyIsReadAsItWasWritten(t *testing.T) {
	for _, want := range []testimony{
		{},
		{incarnation: incarnation{1, 2, 255}, database: 7, self: 8, grants: 9},
		{incarnation: incarnation{15: 1}, database: math.MaxUint64, self: math.MaxUint64, grants: math.MaxInt64},
	} {
		raw := want.encode()
		if got, err := decode(raw); err != nil || got != want {
			t.Errorf("%+v came back as %+v, %v", want, got, err)
		}
		if strings.Count(string(raw[:]), "\n") != 6 {
			t.Errorf("not six lines of text: %q", raw)
		}
	}
}

func TestATestimonyWithAnyByteChangedIsNone(t *testing.T) {
	raw := testimony{incarnation: incarnation{1}, database: 7, self: 8, grants: 9}.encode()
	for i := range raw {
		for _, c := range []byte{0, '0', '1', 'f', '\n', ' ', 255} {
			broken := raw
			if broken[i] == c {
				continue
			}
			broken[i] = c
			if got, err := decode(broken); !errors.Is(err, errNoTestimony) {
				t.Fatalf("byte %d as %q: read as %+v, %v", i, c, got, err)
			}
		}
	}
}

func newWitness(t *testing.T) (path string, open func() *witness) {
	path = filepath.Join(t.TempDir(), "w")
	return path, func() *witness {
		w := &witness{path: path}
		if err := w.open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		return w
	}
}

func TestTheWitnessOnlyRises(t *testing.T) {
	_, open := newWitness(t)
	id := incarnation{1}
	first := open()
	if _, err := first.read(); !errors.Is(err, errNoTestimony) {
		t.Errorf("without a file: %v", err)
	}
	if err := first.raise(id, 1); err == nil {
		t.Error("without a file it was raised")
	}
	if err := first.renew(testimony{incarnation: id, database: 5, grants: 3}); err != nil {
		t.Fatal(err)
	}
	const each = 300
	var wg sync.WaitGroup
	for i := range 4 {
		w := open()
		wg.Go(func() {
			for n := range each {
				if err := w.raise(id, int64(4*n+i)); err != nil {
					t.Error(err)
				}
				if got, err := w.read(); err != nil || got.grants < int64(4*n+i) {
					t.Errorf("raised to %d, read %+v, %v", 4*n+i, got, err)
				}
			}
		})
	}
	wg.Wait()
	got, err := open().read()
	if err != nil || got.grants != 4*each-1 || got.database != 5 || got.incarnation != id {
		t.Errorf("read %+v, %v", got, err)
	}
	if err := first.raise(incarnation{2}, 10_000); !errors.Is(err, errOtherIncarnation) {
		t.Errorf("raised for another incarnation: %v", err)
	}
}

func TestTheWitnessIsForItsOwnerOnly(t *testing.T) {
	path, open := newWitness(t)
	if err := open().renew(testimony{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
