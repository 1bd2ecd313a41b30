//! podman's store for guests, with a configuration of its own: nothing of the host owner's holds for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use comity_runtime::atomic_file::{self, FileError, PRIVATE};
use sha2::{Digest as _, Sha256};

use crate::settings::SiteSettings;

/// Variables that podman may see: where programs are, and how registries are reached.
const KEPT_VARIABLES: [&str; 7] =
    ["PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

/// Where images and containers are, and how podman is called for them.
#[derive(Clone, Debug)]
pub(crate) struct PodmanStore {
    program: PathBuf,
    state: PathBuf,
}

impl PodmanStore {
    /// The store in the site's folder `state`.
    pub(crate) fn new(settings: &SiteSettings, state: &Path) -> Self {
        Self { program: settings.podman.clone(), state: state.to_owned() }
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Images and containers.
    pub(super) fn root(&self) -> PathBuf {
        self.state.join("containers")
    }

    /// An empty home: in the owner's are credentials of registries.
    fn home(&self) -> PathBuf {
        self.state.join("home")
    }

    /// Writes the configuration; returns a file without credentials.
    pub(super) fn prepare(&self, settings: &SiteSettings) -> Result<PathBuf, FileError> {
        for folder in [self.root(), self.home()] {
            atomic_file::create_private_dir(&folder)?;
        }
        let home = self.home();
        // Locks in files: those in shared memory are one pool for all of the host's stores.
        let containers = "[engine]\nlock_type = \"file\"\n[network]\n[containers]\n";
        atomic_file::write(&home.join("containers.conf"), containers.as_bytes(), PRIVATE)?;
        let mut registries = "short-name-mode = \"enforcing\"\nunqualified-search-registries = []\n".to_owned();
        for registry in settings.plain_registries() {
            registries.push_str(&format!("[[registry]]\nlocation = {registry:?}\ninsecure = true\n"));
        }
        atomic_file::write(&home.join("registries.conf"), registries.as_bytes(), PRIVATE)?;
        let no_credentials = home.join("no-credentials.json");
        atomic_file::write(&no_credentials, b"{}", PRIVATE)?;
        Ok(no_credentials)
    }

    /// podman on this store, without a command yet.
    pub(crate) fn command(&self) -> Command {
        let root = self.root();
        // podman refuses longer paths than 50 characters; and one host may have several agents.
        let digest = hex::encode(&Sha256::digest(root.as_os_str().as_encoded_bytes())[..4]);
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", self.home()).env("CONTAINERS_CONF", self.home().join("containers.conf"));
        command.env("CONTAINERS_REGISTRIES_CONF", self.home().join("registries.conf"));
        command.envs(KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.arg(format!("--root={}", root.display())).arg(format!("--runroot=/run/comity-site-{digest}"));
        // After a restart of the host this tells the store's containers apart from those that run.
        command.arg(format!("--tmpdir=/run/comity-site-{digest}/libpod")).arg("--log-level=error");
        if !Path::new("/run/systemd/system").is_dir() {
            command.args(["--cgroup-manager=cgroupfs", "--events-backend=file"]);
        }
        command
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn podman_sees_nothing_of_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("podman");
        std::fs::write(&program, "#!/bin/sh\nenv\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let settings = SiteSettings { podman: program, ..SiteSettings::default() };
        let store = PodmanStore::new(&settings, dir.path());
        store.prepare(&settings).unwrap();
        let output = String::from_utf8(store.command().output().unwrap().stdout).unwrap();
        // Cargo sets many variables for tests.
        assert!(std::env::vars_os().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
        let names = output.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name);
        let ours = ["HOME", "CONTAINERS_CONF", "CONTAINERS_REGISTRIES_CONF"];
        // The shell sets these itself.
        let of_shell = ["PWD", "SHLVL", "_", "OLDPWD"];
        let is_known = |name: &str| ours.contains(&name) || KEPT_VARIABLES.contains(&name) || of_shell.contains(&name);
        let foreign: Vec<&str> = names.filter(|name| !is_known(name)).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
        assert!(output.contains(&format!("HOME={}", store.home().display())), "{output}");
        let files = std::fs::read_to_string(store.home().join("registries.conf")).unwrap();
        assert!(files.contains("unqualified-search-registries = []"), "{files}");
    }
}
