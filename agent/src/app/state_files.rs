//! What of the state directory other users may not read, and what they may not change.

use std::path::Path;

use comity_agent_state::store::STORE_FILE;
use comity_runtime::IdentityDir;
use comity_runtime::private_files::{self, NotPrivate};

use crate::enrollment::member_brokers::{BROKERS_FILE, LEARNT_BROKERS_FILE};

/// Name of the identity key's file in the state directory.
pub const IDENTITY_KEY_FILE: &str = "identity-key.pem";

/// Refuses a state directory whose secrets other users could read, and on a host one in which they could put files of
/// their own: whoever names the brokers or replaces the store decides whom the agent trusts. Accepts missing files.
///
/// # Errors
/// [`NotPrivate`], with the command that fixes it.
pub fn check_state_files(state: &Path) -> Result<(), NotPrivate> {
    for path in [state.to_owned(), state.join(BROKERS_FILE), state.join(LEARNT_BROKERS_FILE)] {
        private_files::check_writers(&path)?;
    }
    let identity = state.join("identity");
    let key = IdentityDir::new(&identity).key_file();
    for path in [identity, key, state.join(IDENTITY_KEY_FILE), state.join(STORE_FILE)] {
        private_files::check(&path)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn other_user_writes_into_agent_state() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("state");
        fs::create_dir(&state).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(&state, 0o755);
        check_state_files(&state).unwrap();
        for name in [BROKERS_FILE, LEARNT_BROKERS_FILE] {
            fs::write(state.join(name), "broker.example:7443").unwrap();
            set(&state.join(name), 0o644);
        }
        check_state_files(&state).unwrap();
        for path in [state.clone(), state.join(BROKERS_FILE), state.join(LEARNT_BROKERS_FILE)] {
            let kept = path.metadata().unwrap().permissions().mode() & 0o777;
            // The sticky bit of the third lets others add files.
            for open in [0o020, 0o002, 0o1002] {
                set(&path, kept | open);
                let error = check_state_files(&state).unwrap_err().to_string();
                assert!(error.ends_with(&format!("run: chmod go-w {}", path.display())), "{open:o}: {error}");
            }
            set(&path, kept);
        }
        fs::create_dir(state.join("identity")).unwrap();
        set(&state.join("identity"), 0o755);
        let error = check_state_files(&state).unwrap_err().to_string();
        assert!(error.contains("can enter it") && error.contains("chmod go= "), "{error}");
    }
}
