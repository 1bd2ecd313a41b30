//! What runs in the container besides the command.
//!
//! The container's script waits for the working folder, runs the command, notes how it ended, and waits until the results
//! are fetched: a container that has ended gives out no files. It needs `sh` and `sleep` of the image, and `tar` and
//! `find` to move files.

/// Folder of the command.
pub(super) const WORK: &str = "/workspace";
/// Its files steer the script: `sent`, `ready`, `pid`, `code` and `done`.
pub(super) const CONTROL: &str = "/comity";

/// Runs `"$@"`, in a process group of its own where the image has `setsid`. Shells without job control start background
/// commands with SIGINT ignored, which `env` undoes where it can. A trap ends `wait`, so it is called until the command is
/// gone. TERM to the script itself means that the pod is deleted: nobody fetches results then.
pub(super) const RUN_COMMAND: &str = r#"
cd /workspace || exit 126
pause() { sleep 0.2 2>/dev/null || sleep 1; }
trap 'exit 143' TERM
until [ -e /comity/ready ]; do pause; done
if env --default-signal=INT true 2>/dev/null; then set -- env --default-signal=INT "$@"; fi
if setsid true 2>/dev/null; then set -- setsid "$@"; fi
trap 'is_over=1; kill -TERM -$child 2>/dev/null || kill -TERM $child 2>/dev/null' TERM
"$@" &
child=$!
echo $child >/comity/pid
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
[ -z "$is_over" ] || exit $code
echo $code >/comity/code || exit $code
trap 'exit $code' TERM
until [ -e /comity/done ]; do pause; done
exit $code
"#;

/// Only waits: an interactive command runs beside it.
pub(super) const WAIT_FOR_END: &str = r#"
trap 'exit 143' TERM
until [ -e /comity/done ]; do sleep 0.2 2>/dev/null || sleep 1; done
"#;

/// Starts the command. Results are what changes from now on: what is newer than `begun` where `find` looks at the time of
/// the change, else what was written after `sent`, which is two seconds old because BusyBox's `find` compares whole
/// seconds. The pause is longer than a tick of a file system's clock.
pub(super) const BEGIN: &str = r#"
: >/comity/begun
touch -d "@$(($(date +%s) - 2))" /comity/sent 2>/dev/null || : >/comity/sent
sleep 0.05 2>/dev/null || sleep 1
: >/comity/ready
"#;

/// Writes what changed as tar archives.
pub(super) const SEND_RESULTS: &str = r#"
cd /workspace || exit 1
if find /comity/begun -cnewer /comity/begun >/dev/null 2>&1; then set -- -cnewer /comity/begun; else set -- -newer /comity/sent; fi
find . -type f "$@" -exec tar -cf - {} +
"#;

/// Lets the container end.
pub(super) const FINISH: &str = ": >/comity/done";

/// Sends the signal `$0` to the command, and to what it started where it has a process group.
pub(super) const SIGNAL: &str =
    r#"read -r pid </comity/pid && { kill -s "$0" -- "-$pid" 2>/dev/null || kill -s "$0" "$pid"; }"#;

/// Waits up to half a minute for the command's end, and prints its code; nothing if it still runs. Bounded, because
/// Kubernetes ends no process of a client that is gone.
pub(super) const AWAIT_END: &str = r#"
if sleep 0.2 2>/dev/null; then nap=0.2 left=150; else nap=1 left=30; fi
until [ -s /comity/code ] || [ $left = 0 ]; do sleep $nap; left=$((left - 1)); done
[ -s /comity/code ] || exit 0
read -r code </comity/code && echo "$code"
"#;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use comity_testkit::{missing_for_canary_image, requirements};

    use super::*;

    const SHELL: &[&str] = &["/bin/sh"];

    /// Shells that images have: dash or bash, and BusyBox's.
    fn shells() -> Vec<&'static [&'static str]> {
        let has_busybox = requirements::met("scripts of runs in BusyBox", &missing_for_canary_image());
        [SHELL].into_iter().chain(has_busybox.then_some(&["busybox", "sh"][..])).collect()
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    /// The container's script, with its folders elsewhere.
    struct Script {
        folder: tempfile::TempDir,
        child: Child,
    }

    impl Script {
        fn start(shell: &[&str], command: &str) -> Self {
            let folder = tempfile::tempdir().expect("made");
            let place = |name: &str| folder.path().join(name).display().to_string();
            for name in ["work", "control"] {
                std::fs::create_dir(folder.path().join(name)).expect("made");
            }
            let script = RUN_COMMAND.replace(WORK, &place("work")).replace(CONTROL, &place("control"));
            let mut started = Command::new(shell[0]);
            started.args(&shell[1..]).args(["-c", &script, "run"]).args(shell).args(["-c", command]);
            let child = started.spawn().expect("started");
            std::fs::write(folder.path().join("control/ready"), "").expect("written");
            Self { folder, child }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn signal(name: &str, pid: &str) {
            assert!(Command::new("kill").args([name, pid]).status().expect("ran").success());
        }

        /// The code that the script tells, and its own.
        fn ends(mut self) -> (String, Option<i32>) {
            let told = text_of(&self.path("control/code"));
            std::fs::write(self.path("control/done"), "").expect("written");
            (told, self.child.wait().expect("ended").code())
        }
    }

    /// Waits until a file has a text; returns it.
    fn text_of(file: &Path) -> String {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "{} has no text", file.display());
            let text = std::fs::read_to_string(file).unwrap_or_default();
            if !text.trim().is_empty() {
                return text.trim().to_owned();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_script_ends_with_the_commands_code() {
        for shell in shells() {
            assert_eq!(Script::start(shell, "exit 7").ends(), ("7".to_owned(), Some(7)), "{shell:?}");
        }
    }

    #[test]
    fn a_deleted_pod_ends_with_its_command() {
        for shell in shells() {
            let mut script = Script::start(shell, "while :; do sleep 0.05; done");
            text_of(&script.path("control/pid"));
            Script::signal("-TERM", &script.child.id().to_string());
            assert_eq!(script.child.wait().expect("ended").code(), Some(143), "{shell:?}");
            assert!(!script.path("control/code").exists(), "nobody fetches results");
        }
    }

    fn signalled(shell: &[&str], command: &str, name: &str) -> (String, Option<i32>) {
        let script = Script::start(shell, command);
        text_of(&script.path("work/up"));
        text_of(&script.path("control/pid"));
        let signal = SIGNAL.replace(CONTROL, &script.path("control").display().to_string());
        let status = Command::new(shell[0]).args(&shell[1..]).args(["-c", &signal, name]).status();
        assert!(status.expect("ran").success(), "{shell:?}");
        script.ends()
    }

    #[test]
    fn the_command_hears_ctrl_c() {
        // Not BusyBox, whose `env` leaves SIGINT ignored.
        let command = "trap 'exit 42' INT; echo up >up; while :; do sleep 0.05; done";
        assert_eq!(signalled(SHELL, command, "INT"), ("42".to_owned(), Some(42)));
    }

    #[test]
    fn what_the_command_started_hears_signals_too() {
        for shell in shells() {
            let command = "trap 'wait; exit 42' TERM; \
                           sh -c 'trap \"exit\" TERM; echo up >up; while :; do sleep 0.05; done' & wait";
            assert_eq!(signalled(shell, command, "TERM"), ("42".to_owned(), Some(42)), "{shell:?}");
        }
    }

    #[test]
    fn results_are_what_changed() {
        for shell in shells() {
            let folder = tempfile::tempdir().expect("made");
            let place = |name: &str| folder.path().join(name).display().to_string();
            for name in ["workspace", "comity"] {
                std::fs::create_dir(folder.path().join(name)).expect("made");
            }
            let run = |script: &str| {
                let script = script.replace(WORK, &place("workspace")).replace(CONTROL, &place("comity"));
                let output = Command::new(shell[0]).args(&shell[1..]).args(["-c", &script]).output().expect("ran");
                assert!(output.status.success(), "{output:?}");
                output.stdout
            };
            run("touch -d '2026-01-01 00:00:00' /workspace/old");
            run(BEGIN);
            run("echo new >/workspace/new");
            let archive = run(SEND_RESULTS);
            let mut archive = tar::Archive::new(&archive[..]);
            let names = archive.entries().expect("an archive").map(|entry| entry.expect("an entry"));
            let names: Vec<_> = names.map(|entry| entry.path().expect("a path").display().to_string()).collect();
            assert_eq!(names, ["./new"], "{shell:?}");
        }
    }
}
