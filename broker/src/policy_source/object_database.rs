//! The objects of a repository on disk, read with gitoxide.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use comity_provenance::{ObjectId, ObjectKind, ObjectStore, StoreError};
use gix_object::{Find as _, FindHeader as _};
use gix_odb::store::init::Options;

use crate::policy_source::pull_error::PullError;

/// Bytes of one object, also of those that nobody reads: inflating a pack needs them in memory.
const MAX_OBJECT_BYTES: usize = 16 * 1024 * 1024;
/// Packs in the cache. Each look-up searches all of them; with more, the leader clears the cache and fetches one pack.
const MAX_PACKS: usize = 24;
const OBJECTS_REMEDY: &str = "run `git fsck` in the repository, and `comity policy source set` once it is mended";

/// Objects in a directory.
pub struct ObjectDatabase {
    handle: Box<gix_odb::Handle>,
}

impl std::fmt::Debug for ObjectDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ObjectDatabase")
    }
}

impl ObjectDatabase {
    /// Opens the directory `objects` of a repository.
    ///
    /// # Errors
    /// [`PullError`] if it cannot be read.
    pub fn open(objects: &Path) -> Result<Self, PullError> {
        let options = Options { alloc_limit_bytes: Some(MAX_OBJECT_BYTES), ..Options::default() };
        let handle = gix_odb::at_opts(objects, gix_hash::Kind::Sha1, None, options)
            .map_err(|error| PullError::saying("cannot read the objects", &error, OBJECTS_REMEDY))?;
        Ok(Self { handle: Box::new(handle) })
    }

    /// Whether it has a commit.
    pub(super) fn has(&self, commit: ObjectId) -> bool {
        let is_commit = |kind| kind_of(kind) == ObjectKind::Commit;
        id(commit).is_some_and(|id| matches!(self.handle.try_header(&id), Ok(Some(header)) if is_commit(header.kind)))
    }
}

impl ObjectStore for ObjectDatabase {
    fn object(&self, wanted: ObjectId, kind: ObjectKind, limit: usize) -> Result<Vec<u8>, StoreError> {
        let missing = || StoreError::Missing { kind, id: wanted };
        let unreadable = |error: &dyn std::fmt::Display| {
            StoreError::Unreadable(PullError::saying(&wanted.to_string(), error, OBJECTS_REMEDY).reason)
        };
        let id = id(wanted).ok_or_else(missing)?;
        let header = self.handle.try_header(&id).map_err(|error| unreadable(&error))?.ok_or_else(missing)?;
        if header.size > limit as u64 {
            return Err(StoreError::TooLarge { kind, id: wanted, limit });
        }
        let mut content = Vec::new();
        let found = self.handle.try_find(&id, &mut content).map_err(|error| unreadable(&error))?;
        let found = found.ok_or_else(missing)?;
        if kind_of(found.kind) != kind {
            let reason = format!("it is a {}", kind_of(found.kind).as_str());
            return Err(StoreError::Corrupt { kind, id: wanted, reason });
        }
        Ok(found.data.to_vec())
    }
}

fn id(id: ObjectId) -> Option<gix_hash::ObjectId> {
    gix_hash::ObjectId::try_from(id.as_bytes()).ok()
}

fn kind_of(kind: gix_object::Kind) -> ObjectKind {
    match kind {
        gix_object::Kind::Commit => ObjectKind::Commit,
        gix_object::Kind::Tree => ObjectKind::Tree,
        gix_object::Kind::Blob => ObjectKind::Blob,
        gix_object::Kind::Tag => ObjectKind::Tag,
    }
}

fn failed(error: &std::io::Error) -> PullError {
    PullError::saying("cannot use the cache of the policy's repository", error, "free the broker's disk")
}

/// What was fetched over the network, one folder for each repository.
#[derive(Debug)]
pub(super) struct Cache {
    objects: PathBuf,
}

impl Cache {
    /// The cache of a repository; another one's is removed.
    pub(super) fn of(folder: &Path, repository: &str) -> Result<Self, PullError> {
        let name = folder.join("repository");
        let objects = folder.join("objects");
        let packs = objects.join("pack");
        let is_this = fs::read_to_string(&name).is_ok_and(|held| held == repository);
        let count = fs::read_dir(&packs).map_or(0, Iterator::count);
        // A pack has an index, too.
        if !is_this || count > 2 * MAX_PACKS {
            match fs::remove_dir_all(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&error)),
                _ => {}
            }
        }
        fs::create_dir_all(&packs).map_err(|error| failed(&error))?;
        fs::write(&name, repository).map_err(|error| failed(&error))?;
        Ok(Self { objects })
    }

    /// The cache of a repository, if it was fetched already.
    pub(super) fn held(folder: &Path, repository: &str) -> Option<Self> {
        let is_this = fs::read_to_string(folder.join("repository")).is_ok_and(|held| held == repository);
        is_this.then(|| Self { objects: folder.join("objects") })
    }

    /// The file with the layer of an artifact that is a folder.
    pub(super) fn layer(&self) -> PathBuf {
        self.objects.with_file_name("layer")
    }

    /// The head of the bundle that was added last, and the objects, if that is this bundle.
    pub(super) fn added(&self, bundle: &str) -> Result<Option<(ObjectId, ObjectDatabase)>, PullError> {
        let Ok(line) = fs::read_to_string(self.bundle()) else { return Ok(None) };
        let head = line.strip_prefix(bundle).and_then(|rest| rest.strip_prefix(' ')?.parse().ok());
        let Some(head) = head else { return Ok(None) };
        let objects = self.open()?;
        Ok(objects.has(head).then_some((head, objects)))
    }

    /// Notes that all objects of a bundle are here.
    pub(super) fn note_added(&self, bundle: &str, head: ObjectId) -> Result<(), PullError> {
        fs::write(self.bundle(), format!("{bundle} {head}")).map_err(|error| failed(&error))
    }

    /// The file with the name and head of the bundle that was added last.
    fn bundle(&self) -> PathBuf {
        self.objects.with_file_name("bundle")
    }

    pub(super) fn open(&self) -> Result<ObjectDatabase, PullError> {
        ObjectDatabase::open(&self.objects)
    }

    /// Adds a fetched pack, after all its objects were inflated and hashed.
    pub(super) fn add(&self, pack: &[u8]) -> Result<(), PullError> {
        let options = gix_pack::bundle::write::Options {
            thread_limit: Some(1),
            alloc_limit_bytes: Some(MAX_OBJECT_BYTES),
            ..gix_pack::bundle::write::Options::default()
        };
        let remedy = "keep the policy in a repository of its own, without large files";
        let written = gix_pack::Bundle::write_to_directory(
            &mut Cursor::new(pack),
            Some(&self.objects.join("pack")),
            &mut gix_utils::progress::Discard,
            &AtomicBool::new(false),
            None::<gix_odb::Handle>,
            gix_hash::Kind::Sha1,
            options,
        )
        .map_err(|error| PullError::saying("the fetched pack cannot be used", &error, remedy))?;
        if let Some(keep) = written.keep_path {
            // Only a collector of garbage would look at it.
            let _ = fs::remove_file(keep);
        }
        Ok(())
    }
}
