//! The person who runs this process through sudo, and whose home directory gets the files for people.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

/// Depth of directories that change their owner: contexts are three levels below `comity`.
const MAX_DEPTH: u32 = 4;

/// Caller of sudo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SudoCaller {
    home: PathBuf,
    uid: u32,
    gid: u32,
}

impl SudoCaller {
    /// `None` unless this process runs as root for another user.
    pub(crate) fn find() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = home_of(&fs::read_to_string("/etc/passwd").ok()?, &set("SUDO_USER")?)?;
        let (uid, gid) = (set("SUDO_UID")?.parse().ok()?, set("SUDO_GID")?.parse().ok()?);
        (uid != 0).then_some(Self { home, uid, gid })
    }

    /// Directory of the settings of `comity`.
    pub(crate) fn settings_dir(&self) -> PathBuf {
        self.home.join(".config/comity")
    }

    /// Gives the directory, and those above it that root made, to the caller.
    pub(crate) fn give(&self, dir: &Path) -> std::io::Result<()> {
        if let Some(above) = dir.parent().filter(|above| above.starts_with(&self.home) && *above != self.home)
            && fs::symlink_metadata(above)?.uid() == 0
        {
            lchown(above, Some(self.uid), Some(self.gid))?;
        }
        self.give_tree(dir, MAX_DEPTH)
    }

    fn give_tree(&self, path: &Path, depth: u32) -> std::io::Result<()> {
        lchown(path, Some(self.uid), Some(self.gid))?;
        if depth == 0 || !fs::symlink_metadata(path)?.is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(path)? {
            self.give_tree(&entry?.path(), depth - 1)?;
        }
        Ok(())
    }
}

/// The home directory of a user in the text of `/etc/passwd`.
fn home_of(passwd: &str, user: &str) -> Option<PathBuf> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(user))?;
    line.split(':').nth(5).filter(|home| home.starts_with('/')).map(PathBuf::from)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn homes_come_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000:Ada,,,:/home/ada:/bin/bash\nodd:x:1:1::\n";
        assert_eq!(home_of(passwd, "ada"), Some(PathBuf::from("/home/ada")));
        assert_eq!(home_of(passwd, "ad"), None);
        assert_eq!(home_of(passwd, "odd"), None);
    }

    #[test]
    fn files_change_their_owner() {
        let home = tempfile::tempdir().unwrap();
        let this = fs::metadata(home.path()).unwrap();
        if this.uid() != 0 {
            return;
        }
        let caller = SudoCaller { home: home.path().to_owned(), uid: 4_711, gid: 4_712 };
        let context = caller.settings_dir().join("contexts/dev");
        fs::create_dir_all(&context).unwrap();
        fs::write(context.join("key.pem"), "").unwrap();
        caller.give(&caller.settings_dir()).unwrap();
        for path in [home.path().join(".config"), caller.settings_dir(), context.join("key.pem")] {
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), (4_711, 4_712), "{}", path.display());
        }
        assert_eq!(fs::metadata(home.path()).unwrap().uid(), 0);
    }
}
