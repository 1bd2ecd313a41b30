//! Whether a user was revoked, by the copy of the state in a data directory: a certificate made offline would be void.

use std::path::Path;

use comity_runtime::spiffe::UserName;

use crate::config::Settings;
use crate::storage;

/// Whether `name` was revoked. A running broker goes on, and may lag behind its group. `None` if there is no copy that can
/// be read, as before the first start. Blocks.
#[must_use]
pub fn is_revoked(data: &Path, name: &UserName) -> Option<bool> {
    let id = Settings::load(data).ok()?.id;
    let group_dir = data.join("group");
    if !group_dir.exists() {
        return None;
    }
    let copy = storage::read_beside(&group_dir, id).ok()?;
    Some(copy.state.revoked_users.contains_key(name.as_str()))
}
