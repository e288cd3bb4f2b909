// Package docs has the runbook, for the command: fencedb explain prints the section that a line of
// a log leads to.
package docs

import "embed"

// Runbook is runbook.md, and the pages of its sections in runbook/.
//
//go:embed runbook.md runbook/*.md
var Runbook embed.FS
