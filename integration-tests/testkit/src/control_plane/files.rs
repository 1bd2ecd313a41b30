//! The folder of a control plane, and its removal.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::keep_files;

/// Names of the files that make up the state.
pub(super) const FOLDERS: [&str; 5] = ["etcd", "pki", "run", "log", "kubectl-cache"];
const FILES: [&str; 3] = ["admin.kubeconfig", "kwok.yaml", "ports.json"];

/// The files of a control plane, removed when it has gone.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) dir: PathBuf,
    pub(super) keep: bool,
}

impl Files {
    /// Removes our files, and the folder if it is empty then.
    pub(super) fn remove(&self) -> io::Result<()> {
        if !self.keep && !keep_files() {
            self.remove_state();
        }
        remove_if_there(fs::remove_dir_all(self.dir.join("run")))?;
        // Anything else in the folder belongs to the caller.
        match fs::remove_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            result => remove_if_there(result),
        }
    }

    /// Removes the state, but not the pid files.
    pub(super) fn remove_state(&self) {
        let folders =
            FOLDERS.iter().filter(|folder| **folder != "run").map(|folder| fs::remove_dir_all(self.dir.join(folder)));
        let files = FILES.iter().map(|file| fs::remove_file(self.dir.join(file)));
        for result in folders.chain(files) {
            if let Err(error) = remove_if_there(result) {
                tracing::warn!(dir = %self.dir.display(), %error, "cannot remove a file of a control plane");
            }
        }
    }
}

fn remove_if_there(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove the files of a control plane");
        }
    }
}
