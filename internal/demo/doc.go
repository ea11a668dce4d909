// Package demo shows what a lost answer costs. It runs one payment for each
// of six faults and four client stacks, through real sockets, pipes and
// processes, and reports what can be counted afterwards: the `tools/call`
// requests that the server logged and the charges in its ledger.
//
// It promises that every number in a [Row] was measured in that run: calls and
// charges are lines in files that the server process wrote and that are read
// once it has exited, times come from the fault layer's and the caller's
// clock, which are one process's. A row whose fault did not happen is an
// error, never a row.
//
// It does not judge stacks in general, nor load; for that there are the
// interop matrix and the chaos campaign.
//
//	rows, err := demo.Run(ctx, &demo.Options{Server: []string{exe, "demo-server"}})
//	if err != nil { … } // names the rows that are missing
//	problems := demo.Judge(rows)
package demo
