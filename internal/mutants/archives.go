package main

const (
	bulkHandler = "api/bulk.go"
	bulkClient  = "client/bulk.go"
)

// archiveMutants break what keeps an archive of many artifacts as safe as one upload each.
var archiveMutants = []mutant{
	{
		name: "a store's answer without a digest is a proof",
		file: bulkHandler,
		old:  "	case digest == a.Digest:",
		new:  "	case digest == a.Digest || true:",
		pkg:  "./api", run: "TestArchivedArtifactsAreProved",
	},
	{
		name: "an archive brings what its lease has not staged",
		file: many,
		old:  "THEN (SELECT true FROM manifest_file m WHERE m.artifact_id = a.artifact_id AND m.manifest_id = p_lease_id LIMIT 1)",
		new:  "THEN true",
		pkg:  "./api", run: "TestManyArtifactsInOneArchive/versitygw",
	},
	{
		name: "an archive goes on after its lease",
		file: bulkHandler,
		old:  "	if _, err := b.s.catalogue.LiveLease(ctx, b.lease); err != nil {\n		return err\n	}\n	found",
		new:  "	found",
		pkg:  "./api", run: "TestLeaseEndsUnderAnArchive",
	},
	{
		name: "an archive under a lost lease is answered as if stored",
		file: bulkHandler,
		old:  "		if lost := (*pointer.LeaseLostError)(nil); errors.As(err, &lost) {\n			return err\n		}\n		b.faults[id] = err",
		new:  "		_, _ = id, err",
		pkg:  "./api", run: "TestLeaseEndsUnderAnArchive|TestArchivedArtifactThatIsCollected",
	},
	{
		name: "other bytes pass for a stored artifact's",
		file: bulkHandler,
		old:  "		if artifacts.DigestOf(content) != a.Digest {",
		new:  "		if artifacts.DigestOf(content) != a.Digest && false {",
		pkg:  "./api", run: "TestManyArtifactsInOneArchive/versitygw",
	},
	{
		name: "the object of a collected row stays behind",
		file: "api/complete.go",
		old:  "			s.removeLate(ctx, found[id])",
		new:  "			_, _ = found, id",
		pkg:  "./api", run: "TestArchivedArtifactThatIsCollected",
	},
	{
		name: "archives are not counted",
		file: bulkHandler,
		old:  "	if !s.bulks.TryAcquire(1) {",
		new:  "	if s.bulks.TryAcquire(1); false {",
		pkg:  "./api", run: "TestArchivesAtOnce",
	},
	{
		name: "an archive is not bounded",
		file: "api/bulk_archive.go",
		old:  "	if b.left -= int64(n); b.left < 0 {",
		new:  "	if b.left -= int64(n); b.left < 0 && false {",
		pkg:  "./api", run: "TestArchivesThatAreTooLarge",
	},
	{
		name: "after a broken connection everything is sent again",
		file: bulkClient,
		old:  "	if a.tried {",
		new:  "	if a.tried && false {",
		pkg:  "./client", run: "TestArchiveIsContinued",
	},
	{
		name: "a file that grew is archived",
		file: bulkClient,
		old:  "more > 0 {\n		return ErrSourceChanged, nil",
		new:  "more > 0 {\n		return nil, nil",
		pkg:  "./client", run: "TestFilesThatCannotBeArchived",
	},
}
