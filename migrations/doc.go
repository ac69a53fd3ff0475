// Package migrations holds the database: its tables, and the functions that decide everything
// artifactd promises. They are numbered SQL files, applied in order by [Up].
//
// Everything lives in the schema artifactd. The service's role may execute the functions that
// are not internal and read the tables, and nothing else; the functions run as their owner.
package migrations
