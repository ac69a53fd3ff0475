package pointer

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

// Limits of the contract.
const (
	MaxNameBytes     = 200
	MaxHolderBytes   = 200
	MaxPathBytes     = 1024
	MaxMetadataBytes = 16 << 10
	MaxLabels        = 64
	MaxFiles         = 100_000 // of one manifest
	MaxFilesPerStage = 1_000
	MaxInlineFiles   = 1_000 // in a resolved version
	MaxPublishLeases = 100
	MaxResolveNames  = 1_000
	MaxResolveFiles  = 5_000 // in the versions of many names together
	MinTTL           = time.Second
	MaxTTL           = 24 * time.Hour
	DefaultTTL       = 60 * time.Second
	// MaxLeaseLife bounds all renewals of one lease together, counted from its acquisition.
	MaxLeaseLife = 7 * 24 * time.Hour
)

// State is the fate of a generation.
type State string

// A generation starts leased and ends in exactly one of the other states.
const (
	StateLeased     State = "leased"
	StatePublished  State = "published"
	StateReleased   State = "released"
	StateBroken     State = "broken"
	StateExpired    State = "expired"
	StateSuperseded State = "superseded"
)

// Settings of a pointer.
type Settings struct {
	Name         string
	KeepVersions int   // displaced versions kept whatever their age
	KeepSeconds  int64 // seconds a displaced version is kept, however many there are
	Public       bool  // readable without an access token
	Site         bool  // files are shown by browsers, index.html for a folder
	Labels       map[string]string
	CreatedAt    time.Time
	UpdatedAt    time.Time
	RetiredAt    *time.Time
}

// SettingsChange creates or updates a pointer; nil members stay as they are.
type SettingsChange struct {
	KeepVersions *int
	KeepSeconds  *int64
	Public       *bool
	Site         *bool
	Labels       map[string]string // replaces all labels when not nil
}

// Summary is one pointer of a list.
type Summary struct {
	Settings Settings
	Current  *Token // nil when nothing is shown
	Lease    LeaseState
}

// LeaseState tells of a pointer's live lease without its id.
type LeaseState struct {
	Live      bool
	Holder    string
	Token     Token
	ExpiresIn time.Duration
}

// Lease is the right to publish one generation.
type Lease struct {
	ID         uuid.UUID
	Pointer    string
	Token      Token
	Holder     string
	State      State
	AcquiredAt time.Time     // database's clock
	ExpiresAt  time.Time     // database's clock; of an ended lease, when it ended
	ExpiresIn  time.Duration // left when the database answered; 0 when ended
	TTL        time.Duration
}

// AcquireRequest asks for the next generation of a pointer.
type AcquireRequest struct {
	Pointer     string
	Holder      string
	TTL         time.Duration // 0 means DefaultTTL
	OperationID uuid.UUID     // zero: not repeatable
	Wait        time.Duration // how long to wait in line while the lease is held

	waiter uuid.UUID // its place in line; zero while it does not wait
}

// StageFile declares one file of a generation's manifest.
type StageFile struct {
	Path      string
	Digest    artifacts.Digest
	Size      int64 // bytes
	MediaType string
}

// StagedFile is the state of one staged path.
type StagedFile struct {
	Path      string
	Artifact  Artifact
	MediaType string
}

// Artifact is one upload: immutable bytes under a key of their own.
type Artifact struct {
	ID          uuid.UUID
	Pointer     string
	Token       Token // of the generation that uploads or uploaded it
	LeaseID     uuid.UUID
	Digest      artifacts.Digest
	Size        int64
	MediaType   string
	Stored      bool
	Verified    string    // how the bytes were proved; empty until stored
	WritableTil time.Time // until then a URL for its upload may be used; committed
	UploadID    string    // the store's multipart upload, while one is open
}

// File is one file of a version.
type File struct {
	Path       string
	Digest     artifacts.Digest
	Size       int64
	MediaType  string
	ArtifactID uuid.UUID // names the object; never shown to readers
}

// Version is a published generation as readers see it.
type Version struct {
	// ID tells versions apart even where a lost database history and the one that came after it
	// have given out the same token.
	ID             uuid.UUID
	Pointer        string
	Token          Token
	PublishedAt    time.Time
	Holder         string
	SourceRevision *int64
	Metadata       json.RawMessage // nil when the publisher gave none
	FileCount      int
	TotalBytes     int64
	ManifestDigest artifacts.Digest
	Files          []File // at most MaxInlineFiles, ordered by path
	FilesTruncated bool
	Public         bool // the pointer may be read without an access token
}

// HistoryEntry is one generation in a pointer's history.
type HistoryEntry struct {
	Token          Token
	State          State
	Holder         string
	AcquiredAt     time.Time
	EndedAt        *time.Time
	PublishedAt    *time.Time
	DisplacedAt    *time.Time
	CollectedAt    *time.Time // from then on its files are gone
	Current        bool
	Readable       bool
	Pinned         bool
	FileCount      int
	TotalBytes     int64
	SourceRevision *int64
	RollbackOf     *Token
	// RecoveredFrom is the token under which a lost history of the database had published this version,
	// which an operator brought back under a token of its own. Two histories may have given it out.
	RecoveredFrom *Token
}

// PublishLease is one pointer's share of a publish.
type PublishLease struct {
	LeaseID        uuid.UUID
	Token          Token
	FileCount      *int // refused as incomplete when the manifest has another number of files
	SourceRevision *int64
	Metadata       json.RawMessage
}

// PublishRequest publishes one or several generations, all or none.
type PublishRequest struct {
	OperationID uuid.UUID
	Leases      []PublishLease
}

// RollbackRequest publishes an old version's manifest as a new generation.
type RollbackRequest struct {
	Pointer     string
	To          Token
	Current     Token // what the caller believes is shown
	OperationID uuid.UUID
	Holder      string
}

// PublishedVersion names what a publish made visible.
type PublishedVersion struct {
	Pointer string
	Version Token
}

// Outcome is the durable outcome of an operation.
type Outcome struct {
	OperationID uuid.UUID
	Kind        string             // published, refused, aborted or acquired
	Versions    []PublishedVersion // of a published one
	Refusals    []Refusal          // of a refused one
	Lease       *Lease             // of an acquired one, as it is now; its id only for callers that may publish
	Pointers    []string           // the pointers it names, for authorisation
}

// Page bounds a list. Cursor is what the previous page returned, empty for the first.
type Page struct {
	Limit  int
	Cursor string
}

// Scope is what an access token may do; each includes the ones before it.
type Scope string

// Scopes, weakest first.
const (
	ScopeRead    Scope = "read"
	ScopePublish Scope = "publish"
	ScopeAdmin   Scope = "admin"
)

// AccessToken is a credential's record, without the credential.
type AccessToken struct {
	ID        uuid.UUID
	Name      string
	Scopes    []Scope
	Patterns  []string // pointer names: exact, "prefix.*" or "*"
	CreatedAt time.Time
	ExpiresAt *time.Time
	RevokedAt *time.Time
	LastUsed  *time.Time
}
