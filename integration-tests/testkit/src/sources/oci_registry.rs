//! The registry of the distribution project, as Debian packages it, on this machine and without TLS.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::daemon::tail;
use crate::port;

const PROGRAM: &str = "docker-registry";
const START_PATIENCE: Duration = Duration::from_secs(20);

/// A running registry. Ends with its owner.
#[derive(Debug)]
pub struct OciRegistry {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
}

impl Drop for OciRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl OciRegistry {
    /// What this machine lacks.
    #[must_use]
    pub fn missing() -> Vec<String> {
        let found = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
        let missing = format!("{PROGRAM} (Debian: docker-registry; scripts/system-packages)");
        if found { Vec::new() } else { vec![missing] }
    }

    /// Keeps everything in `home`, also its log.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(home: &Path) -> Result<Self> {
        let [port] = port::free()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n",
            home.join("registry").display()
        );
        let (file, log) = (home.join("registry.yml"), home.join("registry.log"));
        fs::write(&file, config)?;
        let child = Command::new(PROGRAM)
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .context("the registry does not start")?;
        let mut registry = Self { address, child };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = registry.child.try_wait()? {
                bail!("the registry ended ({status}):\n{}", tail(&log));
            }
            ensure!(begun.elapsed() < START_PATIENCE, "the registry does not listen at {address}:\n{}", tail(&log));
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(registry)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::requirements;

    #[test]
    fn a_registry_that_ends_says_why() {
        if !requirements::met("a registry", &OciRegistry::missing()) {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        // A line end in the path makes the configuration unreadable.
        let folder = home.path().join("a\n- b: [");
        fs::create_dir(&folder).unwrap();
        let began = Instant::now();
        let error = OciRegistry::start(&folder).unwrap_err().to_string();
        assert!(error.contains("the registry ended") && error.lines().count() > 1, "{error}");
        assert!(began.elapsed() < START_PATIENCE, "it did not wait");
    }
}
