package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
)

// Apply brings up an application's database: it calls [Up], and then applies the application's own
// migrations, SQL files with goose's annotations at the root of files. So they can call
// fencedb.protect. table keeps their versions; an application that has used goose before passes the
// name of its table, which is goose_db_version unless it was changed.
//
// Programs that migrate at the same moment wait for each other, as with Up, and an error leaves
// what Up says. An embedded directory needs [fs.Sub]; a pattern such as //go:embed *.sql does not.
func Apply(ctx context.Context, db *sql.DB, files fs.FS, table string) error {
	if err := Up(ctx, db); err != nil {
		return err
	}
	if table == "" || table == versionTable {
		return fmt.Errorf("fencedb/migrations: apply: %q cannot be the application's version table; name one "+
			"such as goose_db_version", table)
	}
	provider, err := newProvider(db, files, table)
	if err != nil {
		return fmt.Errorf("fencedb/migrations: apply: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("fencedb/migrations: apply: %w", err)
	}
	return nil
}
