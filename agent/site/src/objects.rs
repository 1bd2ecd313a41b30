//! ConfigMaps and Secrets of leases, each in a file of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_runtime::atomic_file;
use comity_types::{LeaseId, is_dns_subdomain};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::record_files;

/// Most objects of one lease.
const MAX_OBJECTS: usize = 256;
/// Largest object in bytes, as in Kubernetes.
const MAX_OBJECT_BYTES: usize = 1 << 20;
const MAX_STORED_OBJECT_BYTES: u64 = 2 << 20;
const OBJECTS_FOLDER: &str = "objects";

/// A kind of object that pods read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum ObjectKind {
    ConfigMap,
    Secret,
}

impl ObjectKind {
    /// Its name in the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// Its name in paths of the API.
    pub(crate) const fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }
}

/// Why an object is not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error("{0}")]
    Invalid(String),
    #[error("there is one of this name already")]
    Exists,
    #[error("there is none of this name")]
    Missing,
    #[error("it has changed since the version that this one names; read it again")]
    Conflict,
    #[error("the lease has {MAX_OBJECTS} ConfigMaps and Secrets already; delete some")]
    TooMany,
    #[error("it cannot be stored: {0}")]
    Disk(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectKey {
    lease: LeaseId,
    kind: ObjectKind,
    name: String,
}

/// An object as its author wrote it, and the version that it gets.
#[derive(Clone, Copy)]
pub(crate) struct NewObject<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) kind: ObjectKind,
    pub(crate) object: &'a Value,
    pub(crate) version: u64,
}

/// An object, and how it is kept in its file. No `Debug`: it may be a Secret.
#[derive(Clone, Serialize, Deserialize)]
struct StoredObject {
    lease: LeaseId,
    kind: ObjectKind,
    object: Value,
}

/// All objects. Changes are on disk before they take effect.
pub(crate) struct Objects {
    dir: PathBuf,
    all: Mutex<BTreeMap<ObjectKey, Value>>,
}

impl Objects {
    /// Reads all files. Blocks.
    pub(crate) fn open(state: &Path) -> Result<Self, String> {
        let dir = state.join(OBJECTS_FOLDER);
        let stored: Vec<StoredObject> = record_files::read_all(&dir, MAX_STORED_OBJECT_BYTES)?;
        let keyed = stored.into_iter().map(|StoredObject { lease, kind, object }| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (ObjectKey { lease, kind, name }, object)
        });
        let all = keyed.collect();
        Ok(Self { dir, all: Mutex::new(all) })
    }

    /// Adds an object.
    ///
    /// # Errors
    /// [`ObjectError::Exists`] if there is one of its name.
    pub(crate) fn create(&self, key: NewObject<'_>, dry_run: bool) -> Result<Value, ObjectError> {
        self.write(key, dry_run, |old| if old.is_some() { Err(ObjectError::Exists) } else { Ok(()) })
    }

    /// Replaces an object. Where it names the version that it is based on, that must be the present one.
    ///
    /// # Errors
    /// [`ObjectError::Missing`], [`ObjectError::Conflict`].
    pub(crate) fn replace(&self, key: NewObject<'_>, dry_run: bool) -> Result<Value, ObjectError> {
        let based_on = key.object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        self.write(key, dry_run, |old| {
            let present = old.ok_or(ObjectError::Missing)?["metadata"]["resourceVersion"].as_str();
            if based_on.is_some() && based_on.as_deref() != present { Err(ObjectError::Conflict) } else { Ok(()) }
        })
    }

    fn write(
        &self,
        NewObject { lease, kind, object, version }: NewObject<'_>,
        dry_run: bool,
        may: impl FnOnce(Option<&Value>) -> Result<(), ObjectError>,
    ) -> Result<Value, ObjectError> {
        let object = checked(lease, kind, object, version)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = ObjectKey { lease, kind, name };
        let mut all = self.lock();
        may(all.get(&key))?;
        if !all.contains_key(&key) && all.keys().filter(|key| key.lease == lease).count() >= MAX_OBJECTS {
            return Err(ObjectError::TooMany);
        }
        if dry_run {
            return Ok(object);
        }
        let stored = StoredObject { lease, kind, object: object.clone() };
        let bytes = serde_json::to_vec(&stored).map_err(|error| ObjectError::Disk(error.to_string()))?;
        atomic_file::write(&self.path(&key), &bytes, atomic_file::PRIVATE)
            .map_err(|error| ObjectError::Disk(error.to_string()))?;
        all.insert(key, object.clone());
        Ok(object)
    }

    /// An object, as it is stored.
    pub(crate) fn get(&self, lease: LeaseId, kind: ObjectKind, name: &str) -> Option<Value> {
        self.lock().get(&ObjectKey { lease, kind, name: name.to_owned() }).cloned()
    }

    /// Keys and contents of an object.
    pub(crate) fn data(&self, lease: LeaseId, kind: ObjectKind, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let object = self.get(lease, kind, name)?;
        let text = |field: &str| entries(&object, field);
        let decoded = |(key, value): (String, String)| Some((key, STANDARD.decode(value).ok()?));
        Some(match kind {
            ObjectKind::ConfigMap => text("data")
                .into_iter()
                .map(|(key, value)| (key, value.into_bytes()))
                .chain(text("binaryData").into_iter().filter_map(decoded))
                .collect(),
            ObjectKind::Secret => text("data").into_iter().filter_map(decoded).collect(),
        })
    }

    /// Leases that have objects.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        self.lock().keys().map(|key| key.lease).collect()
    }

    /// All objects of a kind, by name.
    pub(crate) fn list(&self, lease: LeaseId, kind: ObjectKind) -> Vec<Value> {
        let all = self.lock();
        let ours = all.iter().filter(|(key, _)| key.lease == lease && key.kind == kind);
        ours.map(|(_, object)| object.clone()).collect()
    }

    /// Removes an object; returns it as it was.
    pub(crate) fn remove(&self, lease: LeaseId, kind: ObjectKind, name: &str) -> Result<Option<Value>, ObjectError> {
        let key = ObjectKey { lease, kind, name: name.to_owned() };
        let mut all = self.lock();
        if all.contains_key(&key) {
            remove_file(&self.path(&key))?;
        }
        Ok(all.remove(&key))
    }

    /// Removes all objects of a lease.
    pub(crate) fn remove_all(&self, lease: LeaseId) -> Result<(), ObjectError> {
        let mut all = self.lock();
        let ours: Vec<ObjectKey> = all.keys().filter(|key| key.lease == lease).cloned().collect();
        for key in ours {
            remove_file(&self.path(&key))?;
            all.remove(&key);
        }
        Ok(())
    }

    /// Names are checked before they are stored, and hold no `_`.
    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.dir.join(format!("{}_{}_{}.json", key.lease, key.kind.resource(), key.name))
    }

    /// Values are replaced as a whole, so a panic elsewhere cannot leave one half changed.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Value>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove_file(path: &Path) -> Result<(), ObjectError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(ObjectError::Disk(error.to_string())),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn entries(object: &Value, field: &str) -> Vec<(String, String)> {
    let entries = object[field].as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The object with what this API keeps of it.
fn checked(lease: LeaseId, kind: ObjectKind, object: &Value, version: u64) -> Result<Value, ObjectError> {
    let invalid = |reason: String| ObjectError::Invalid(reason);
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    if !is_dns_subdomain(name) {
        return Err(invalid(format!("metadata.name: {name:?}; use lower-case letters, digits, - and .")));
    }
    let mut data = Map::new();
    for field in ["data", "binaryData", "stringData"] {
        let given = &object[field];
        if given.is_null() {
            continue;
        }
        let entries = given.as_object().ok_or_else(|| invalid(format!("{field}: it is no map of strings")))?;
        for (key, value) in entries {
            let text = value.as_str().ok_or_else(|| invalid(format!("{field}.{key}: it is no string")))?;
            if !is_key(key) {
                return Err(invalid(format!("{field}.{key}: use letters, digits, -, _ and .")));
            }
            let is_base64 = (kind == ObjectKind::Secret && field == "data") || field == "binaryData";
            if is_base64 && STANDARD.decode(text).is_err() {
                return Err(invalid(format!("{field}.{key}: it is no base64")));
            }
            let (field, text) = match (kind, field) {
                (ObjectKind::Secret, "stringData") => ("data", STANDARD.encode(text)),
                (_, field) => (field, text.to_owned()),
            };
            data.entry(field).or_insert_with(|| json!({}))[key] = text.into();
        }
    }
    let mut stored = json!({
        "kind": kind.name(), "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": comity_agent_model::lease::lease_id::namespace_name(lease),
            "resourceVersion": version.to_string(),
        },
    });
    for field in ["labels", "annotations", "uid"] {
        if !metadata[field].is_null() {
            stored["metadata"][field] = metadata[field].clone();
        }
    }
    if kind == ObjectKind::Secret {
        stored["type"] = object["type"].as_str().unwrap_or("Opaque").into();
    }
    for (field, entries) in data {
        stored[field] = entries;
    }
    let size = stored.to_string().len();
    if size > MAX_OBJECT_BYTES {
        return Err(invalid(format!("it has {size} bytes; at most {MAX_OBJECT_BYTES} are stored")));
    }
    Ok(stored)
}

fn is_key(key: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty() && key.len() <= 253 && key.chars().all(is_plain) && !key.starts_with("..") && key != "."
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn new(kind: ObjectKind, object: &Value) -> NewObject<'_> {
        NewObject { lease: LeaseId(1), kind, object, version: 7 }
    }

    #[test]
    fn changes_that_meet_are_told_and_a_dry_run_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}});
        let new = |object| new(ObjectKind::ConfigMap, object);
        assert!(matches!(objects.replace(new(&map), false), Err(ObjectError::Missing)));
        objects.create(new(&map), true).unwrap();
        assert!(objects.get(LeaseId(1), ObjectKind::ConfigMap, "m").is_none());
        objects.create(new(&map), false).unwrap();
        assert!(matches!(objects.create(new(&map), false), Err(ObjectError::Exists)));
        let based_on =
            |version: &str| json!({"metadata": {"name": "m", "resourceVersion": version}, "data": {"a": "2"}});
        let (earlier, present) = (based_on("6"), based_on("7"));
        assert!(matches!(objects.replace(new(&earlier), false), Err(ObjectError::Conflict)));
        objects.replace(new(&present), false).unwrap();
        assert_eq!(objects.data(LeaseId(1), ObjectKind::ConfigMap, "m").unwrap()["a"], b"2");
    }

    #[test]
    fn objects_outlive_the_agent_and_belong_to_one_lease() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        let secret = json!({"metadata": {"name": "s"}, "data": {"a": "YQ=="}, "stringData": {"b": "x\ny"}});
        objects.create(new(ObjectKind::Secret, &secret), false).unwrap();
        let map = json!({"metadata": {"name": "s"}, "data": {"a": "1"}, "binaryData": {"b": "AAE="}});
        objects.create(new(ObjectKind::ConfigMap, &map), false).unwrap();
        let again = Objects::open(dir.path()).unwrap();
        let data = again.data(LeaseId(1), ObjectKind::Secret, "s").unwrap();
        assert_eq!((data["a"].as_slice(), data["b"].as_slice()), (&b"a"[..], &b"x\ny"[..]));
        assert_eq!(again.data(LeaseId(1), ObjectKind::ConfigMap, "s").unwrap()["b"], [0, 1]);
        assert!(again.get(LeaseId(2), ObjectKind::Secret, "s").is_none());
        again.remove_all(LeaseId(1)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join(OBJECTS_FOLDER)).unwrap().count(), 0);
    }

    #[test]
    fn an_error_names_the_field_and_quotes_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        for (object, expected) in [
            (json!({"metadata": {"name": "../x"}}), "metadata.name"),
            (json!({"metadata": {"name": "x"}, "data": {"../k": "YQ=="}}), "data.../k"),
            (json!({"metadata": {"name": "x"}, "data": {"k": "hunter2!"}}), "data.k: it is no base64"),
            (json!({"metadata": {"name": "x"}, "data": 3}), "data: it is no map"),
        ] {
            let error = objects.create(new(ObjectKind::Secret, &object), false).err().unwrap().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
