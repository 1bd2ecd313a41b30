//! The first policy of a group that `comity-broker up` founds, as files that people can take into Git.

use std::path::{Path, PathBuf};

use comity_policy::{BundleSource, ReadError, minimal_bundle, read_directory};
use comity_runtime::atomic_file::{self, PUBLIC};
use comity_runtime::spiffe::SpiffeId;

use crate::config::ConfigError;

/// Directory of the first policy below a broker's data directory.
#[must_use]
pub fn first_policy_dir(data: &Path) -> PathBuf {
    data.join("policy")
}

/// Writes the minimal bundle, in which `admin` is maintainer.
///
/// # Errors
/// [`ConfigError::File`].
pub fn write_first_policy(data: &Path, institution: &str, admin: &SpiffeId) -> Result<(), ConfigError> {
    let bundle = minimal_bundle(admin.trust_domain().as_str(), institution, &admin.to_string());
    for file in bundle.files {
        let path = first_policy_dir(data).join(&file.path);
        if let Some(folder) = path.parent() {
            atomic_file::create_private_dir(folder)?;
        }
        atomic_file::write(&path, file.text.as_bytes(), PUBLIC)?;
    }
    Ok(())
}

/// Reads the first policy; `None` if this broker was set up without one.
///
/// # Errors
/// [`ReadError`].
pub fn read_first_policy(data: &Path) -> Result<Option<BundleSource>, ReadError> {
    let dir = first_policy_dir(data);
    if !dir.exists() {
        return Ok(None);
    }
    Ok(Some(BundleSource::of_files(read_directory(&dir)?)))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_policy::Bundle;

    use super::*;

    #[test]
    fn the_written_policy_names_the_admin_and_is_read_back() {
        let home = tempfile::tempdir().unwrap();
        assert!(read_first_policy(home.path()).unwrap().is_none());
        let admin: SpiffeId = "spiffe://dev.test/user/ingrid".parse().unwrap();
        write_first_policy(home.path(), "home", &admin).unwrap();
        let source = read_first_policy(home.path()).unwrap().unwrap();
        let bundle = Bundle::compile(&source).unwrap();
        assert!(bundle.roles_of(&admin.to_string()).federation_admin);
        assert_eq!(bundle.federation.spec.trust_domain, "dev.test");
    }
}
