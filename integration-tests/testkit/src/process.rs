//! Pid files that identify a process by start time and program, and the removal of leftover processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Timeout for a killed process to end.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Name of the pid file of the owner of a folder.
const OWNER: &str = "owner.json";
/// Name of the wrapper that starts a daemon and then becomes it.
const WRAPPER: &str = "setpriv";

/// Why a sweep failed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A running process owns the folder.
    #[error("{} is in use by process {pid}: choose another folder or end that process", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Its owner.
        pid: u32,
    },
    /// A killed process did not end.
    #[error("process {pid} ({}) of an earlier run does not end", program.display())]
    Stays {
        /// The process.
        pid: u32,
        /// Its program.
        program: PathBuf,
    },
    /// Reading or removing pid files failed.
    #[error("cannot read the pid files in {}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Identifies one process by id and start time, because the system reuses ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    /// Clock ticks from boot to the start of the process.
    started_ticks: u64,
    program: PathBuf,
}

impl ProcessIdentity {
    /// The process `pid`, which runs (or is about to run) `program`. `None` when it has gone, or where there is no
    /// /proc.
    pub(crate) fn of(pid: u32, program: &Path) -> Option<Self> {
        let program = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
        Some(Self { pid, started_ticks: running_since(pid)?, program })
    }

    /// This process itself.
    fn of_self() -> Option<Self> {
        Self::of(std::process::id(), &std::env::current_exe().ok()?)
    }

    /// Whether the process still runs.
    pub(crate) fn lives(&self) -> bool {
        running_since(self.pid) == Some(self.started_ticks) && self.runs_its_program()
    }

    fn runs_its_program(&self) -> bool {
        let Ok(found) = fs::read_link(format!("/proc/{}/exe", self.pid)) else { return false };
        // A program that was replaced on disk shows as "path (deleted)".
        let found = found.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        Path::new(&found) == self.program || Path::new(&found).file_name().is_some_and(|name| name == WRAPPER)
    }

    /// Kills the process and waits until it has ended; returns whether it has.
    pub(crate) fn kill(&self) -> bool {
        let deadline = Instant::now() + GONE_WITHIN;
        while self.lives() {
            // The standard library can only kill its own children.
            let killed = Command::new("kill")
                .args(["-KILL", &self.pid.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if killed.is_err() || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Writes the pid file.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        fs::write(path, serde_json::to_vec(self)?)
    }

    fn load(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }
}

/// The start time of a process in ticks since boot: field 22 of /proc/PID/stat. `None` for zombies too.
fn running_since(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in brackets, which may hold anything; state is the one after it.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// Sweeps `folder` and makes this process the owner of its pid files.
pub(crate) fn own(folder: &Path) -> Result<Vec<String>, SweepError> {
    let io = |source| SweepError::Io { folder: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(io)?;
    let swept = sweep_stale(folder)?;
    if let Some(identity) = ProcessIdentity::of_self() {
        identity.save(&folder.join(OWNER)).map_err(io)?;
    }
    Ok(swept)
}

/// Kills the daemons that a killed process left behind, and removes their pid files.
///
/// `folder` is the `run` folder of a [`ControlPlane`](crate::ControlPlane). Only a process whose number,
/// start time and program all fit its pid file is killed. Gives the names of the daemons found alive.
///
/// # Errors
///
/// [`SweepError::InUse`] when the owner lives; other errors when a process or file does not go.
pub fn sweep_stale(folder: &Path) -> Result<Vec<String>, SweepError> {
    let io = |source| SweepError::Io { folder: folder.to_owned(), source };
    if !folder.exists() {
        return Ok(Vec::new());
    }
    if let Some(owner) = ProcessIdentity::load(&folder.join(OWNER)).filter(ProcessIdentity::lives) {
        return Err(SweepError::InUse { folder: folder.to_owned(), pid: owner.pid });
    }
    let mut swept = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_none_or(|extension| extension != "pid") {
            continue;
        }
        if let Some(left) = ProcessIdentity::load(&path).filter(ProcessIdentity::lives) {
            if !left.kill() {
                return Err(SweepError::Stays { pid: left.pid, program: left.program });
            }
            swept.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
        fs::remove_file(&path).map_err(io)?;
    }
    Ok(swept)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn sleeper() -> (std::process::Child, PathBuf) {
        let program =
            ["/bin/sleep", "/usr/bin/sleep"].map(PathBuf::from).into_iter().find(|path| path.exists()).unwrap();
        let child = Command::new(&program).arg("60").spawn().unwrap();
        // Until exec has happened, /proc/PID/exe names the parent's program.
        let exe = format!("/proc/{}/exe", child.id());
        let wanted = fs::canonicalize(&program).unwrap();
        while fs::read_link(&exe).unwrap() != wanted {
            std::thread::sleep(Duration::from_millis(5));
        }
        (child, program)
    }

    #[test]
    fn a_sweep_kills_the_processes_in_pid_files() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, program) = sleeper();
        ProcessIdentity::of(child.id(), &program).unwrap().save(&folder.path().join("etcd.pid")).unwrap();
        assert_eq!(sweep_stale(folder.path()).unwrap(), ["etcd"]);
        assert!(!child.wait().unwrap().success());
        assert!(!folder.path().join("etcd.pid").exists());
    }

    #[test]
    fn a_process_with_a_reused_number_or_another_program_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, program) = sleeper();
        let true_one = ProcessIdentity::of(child.id(), &program).unwrap();
        let reused = ProcessIdentity { started_ticks: true_one.started_ticks - 1, ..true_one.clone() };
        let other = ProcessIdentity { program: "/usr/bin/something-else".into(), ..true_one };
        reused.save(&folder.path().join("a.pid")).unwrap();
        other.save(&folder.path().join("b.pid")).unwrap();
        assert!(sweep_stale(folder.path()).unwrap().is_empty());
        assert!(child.try_wait().unwrap().is_none(), "the process of somebody else was killed");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        own(folder.path()).unwrap();
        assert!(matches!(own(folder.path()), Err(SweepError::InUse { pid, .. }) if pid == std::process::id()));
    }
}
