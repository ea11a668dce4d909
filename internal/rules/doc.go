// Package rules holds the tests of rules that no single package can keep by
// itself: which package may import which, and that the README shows the code
// that is compiled.
package rules
