//! The program in docs/examples/checkpoint saves its work when its lease is reclaimed, and continues from there.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The exit code that the Job in job.yaml ignores.
const MOVED: i32 = 75;

struct Example {
    dir: tempfile::TempDir,
    notice: PathBuf,
}

impl Example {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let notice = dir.path().join("reclaim-at");
        fs::write(&notice, "").expect("the notice, empty as the kubelet writes it");
        Self { dir, notice }
    }

    fn start(&self, steps: u32) -> Child {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/checkpoint/train.py");
        let mut command = Command::new("python3");
        command.env("PYTHONDONTWRITEBYTECODE", "1").arg(program).arg(self.dir.path().join("train.pt"));
        command.arg(format!("--steps={steps}")).arg("--notice").arg(&self.notice);
        command.args(["--save-every=1000", "--step-seconds=0.01"]);
        command.stdout(Stdio::piped()).spawn().expect("python3 runs; scripts/system-packages installs it")
    }

    /// Runs until the program has said `text`, calls `act`, and returns its exit code and all that it said.
    fn run(&self, steps: u32, text: &str, act: impl FnOnce(&Child)) -> (Option<i32>, Vec<String>) {
        let mut child = self.start(steps);
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (mut said, mut act) = (Vec::new(), Some(act));
        for line in output.lines() {
            let line = line.expect("its output is text");
            let (_, line) = line.split_once(' ').expect("a time and a text");
            said.push(line.to_owned());
            if line.starts_with(text)
                && let Some(act) = act.take()
            {
                act(&child);
            }
        }
        (child.wait().expect("it has ended").code(), said)
    }
}

/// The number after this text in the last line that has one.
fn last(said: &[String], text: &str) -> u32 {
    let number = said.iter().rev().find_map(|line| line.strip_prefix(text)?.split(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("nothing begins with {text:?} in {said:#?}"))
}

#[test]
fn a_program_that_is_told_of_a_reclaim_saves_and_continues_from_its_last_step() {
    let example = Example::new();
    let (code, first) = example.run(100_000, "step 5 ", |_| {
        fs::write(&example.notice, "2026-03-01T12:10:00Z").expect("the notice");
    });
    assert_eq!(code, Some(MOVED), "{first:#?}");
    let saved = last(&first, "saved step ");
    assert_eq!(saved, last(&first, "step "), "it saved its last step: {first:#?}");

    fs::write(&example.notice, "").expect("the notice is gone");
    let (code, second) = example.run(100_000, &format!("step {} ", saved + 3), |child| {
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    });
    assert_eq!(second[0], format!("continues after step {saved}"));
    assert!(second[1].starts_with(&format!("step {} ", saved + 1)), "{second:#?}");
    assert_eq!(code, Some(MOVED), "SIGTERM does not count as done: {second:#?}");

    let saved = last(&second, "saved step ");
    let (code, third) = example.run(saved + 2, "done", |_| {});
    assert_eq!((code, third[0].as_str()), (Some(0), format!("continues after step {saved}").as_str()));
    // Not one step is made twice, and the model went on from where it was.
    let loss = |said: &[String], step: u32| {
        let line = said.iter().find(|line| line.starts_with(&format!("step {step} "))).expect("the step");
        line.rsplit(' ').next().and_then(|loss| loss.parse::<f64>().ok()).expect("a loss")
    };
    let whole = Example::new();
    let (_, unbroken) = whole.run(saved + 2, "done", |_| {});
    assert!((loss(&third, saved + 2) - loss(&unbroken, saved + 2)).abs() < 1e-9, "{third:#?} {unbroken:#?}");
}
