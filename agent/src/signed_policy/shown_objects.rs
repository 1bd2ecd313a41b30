//! Git objects that a broker shows.

use std::collections::BTreeMap;

use comity_proto::v1;
use comity_provenance::limits::{MAX_SHOWN_BYTES, shown_bytes};
use comity_provenance::{ObjectId, ObjectKind, ObjectStore, StoreError};

/// Objects by their ids, which this agent computes.
#[derive(Debug, Default)]
pub(crate) struct ShownObjects {
    objects: BTreeMap<ObjectId, (ObjectKind, Vec<u8>)>,
    bytes: usize,
}

impl ShownObjects {
    /// Takes an object.
    ///
    /// # Errors
    /// A sentence: there are too many, or it cannot be used.
    pub(crate) fn take(&mut self, object: v1::GitObject) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(shown_bytes(&object.content));
        if self.bytes > MAX_SHOWN_BYTES {
            return Err(format!("the history has more than {MAX_SHOWN_BYTES} bytes; pin a newer commit"));
        }
        let kind = match object.kind() {
            v1::GitObjectKind::Commit => ObjectKind::Commit,
            v1::GitObjectKind::Tree => ObjectKind::Tree,
            v1::GitObjectKind::Blob => ObjectKind::Blob,
            v1::GitObjectKind::Unspecified => return Err("an object has no kind".to_owned()),
        };
        let id = ObjectId::of(kind, &object.content)
            .ok_or_else(|| "an object was made to have the id of another one".to_owned())?;
        self.objects.insert(id, (kind, object.content));
        Ok(())
    }
}

impl ObjectStore for ShownObjects {
    fn object(&self, id: ObjectId, kind: ObjectKind, limit: usize) -> Result<Vec<u8>, StoreError> {
        match self.objects.get(&id) {
            Some((held, content)) if *held == kind && content.len() <= limit => Ok(content.clone()),
            Some((held, _)) if *held == kind => Err(StoreError::TooLarge { kind, id, limit }),
            _ => Err(StoreError::Unreadable(format!("the broker does not show the {} {id}", kind.as_str()))),
        }
    }
}
