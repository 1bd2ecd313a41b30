//! Starts, watches, kills and restarts a daemon, which never outlives this process.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::process::ProcessIdentity;

/// Lines of the log in an error.
const TAIL_LINES: usize = 12;
/// Bytes of the log to read for those lines.
const TAIL_BYTES: usize = 64 * 1024;
/// Queue length of the spawner. Each sender waits for its answer, so this limits bursts only.
const SPAWNS_WAITING: usize = 32;

/// Everything needed to start or restart a daemon.
#[derive(Debug)]
pub(crate) struct DaemonSpec {
    /// Short name, also of its log.
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Additional environment variables.
    pub(crate) env: Vec<(&'static str, PathBuf)>,
    pub(crate) log: PathBuf,
    pub(crate) pid_file: PathBuf,
}

/// A daemon that is or was running. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Daemon {
    spec: DaemonSpec,
    child: Mutex<Option<Child>>,
}

impl Daemon {
    /// Starts the daemon, without waiting until it serves.
    pub(crate) fn start(spec: DaemonSpec) -> io::Result<Self> {
        let daemon = Self { spec, child: Mutex::new(None) };
        daemon.restart()?;
        Ok(daemon)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.spec.name
    }

    /// Process id while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(Child::id)
    }

    /// Restarts it with the same arguments.
    pub(crate) fn restart(&self) -> io::Result<()> {
        self.kill();
        let mut child = spawn(self.command()?)?;
        if let Some(identity) = ProcessIdentity::of(child.id(), &self.spec.program)
            && let Err(error) = identity.save(&self.spec.pid_file)
        {
            // Without a pid file, a crash would leave the daemon behind.
            child.kill()?;
            child.wait()?;
            return Err(error);
        }
        *self.lock() = Some(child);
        Ok(())
    }

    /// Sends SIGKILL and waits until the process has gone, which takes milliseconds.
    pub(crate) fn kill(&self) {
        let Some(mut child) = self.lock().take() else { return };
        if let Err(error) = child.kill().and_then(|()| child.wait()) {
            tracing::warn!(daemon = self.spec.name, %error, "cannot kill");
            return;
        }
        if let Err(error) = fs::remove_file(&self.spec.pid_file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(daemon = self.spec.name, %error, "cannot remove the pid file");
        }
    }

    /// Its exit status, if it has ended by itself.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.lock().as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.spec.log)
    }

    fn command(&self) -> io::Result<Command> {
        let log = OpenOptions::new().create(true).append(true).open(&self.spec.log)?;
        let mut command = match die_with_parent() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(&self.spec.program);
                command
            }
            None => Command::new(&self.spec.program),
        };
        // A group of its own: Ctrl-C at a terminal reaches the owner only, which still needs the cluster to tidy up.
        command.process_group(0);
        command.envs(self.spec.env.iter().map(|(name, value)| (name, value)));
        command.args(&self.spec.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Path of `setpriv` (util-linux), which asks the kernel to kill a process when its parent dies, if installed.
fn die_with_parent() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| ["/usr/bin/setpriv", "/bin/setpriv"].map(PathBuf::from).into_iter().find(|path| path.exists()))
        .as_deref()
}

type Spawn = (Command, SyncSender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process.
///
/// The parent whose death the kernel reports is the *thread* that started the child. A thread of an async runtime may
/// end at any time, and would take the daemons with it.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<SyncSender<Spawn>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts daemons has ended");
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Spawn>(SPAWNS_WAITING);
        std::thread::spawn(move || {
            for (mut command, answer) in receiver {
                // If the requester is gone, the child is dropped and killed.
                if let Err(unsent) = answer.send(command.spawn())
                    && let Ok(mut child) = unsent.0
                {
                    drop(child.kill().and_then(|()| child.wait()));
                }
            }
        });
        sender
    });
    let (sender, receiver) = sync_channel(1);
    spawner.send((command, sender)).map_err(|_| gone())?;
    receiver.recv().map_err(|_| gone())?
}

/// The last lines of a file, as far as it can be read.
pub(crate) fn tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]))
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
