//! Ctrl-C while a command waits.

use std::io::{BufRead as _, Read as _};
use std::process::{Output, Stdio};

use super::{Running, comity, exported, signal, stdout};

/// `spec` is a request that waits, because no donor can serve it.
pub(crate) fn ctrl_c_ends_the_wait_and_not_the_request(
    as_alice: &dyn Fn(&[&str]) -> Output,
    guide: &str,
    spec: &[&str],
) {
    let mut command = comity();
    for variable in ["COMITY_BROKER", "COMITY_IDENTITY"] {
        command.env(variable, exported(guide, variable));
    }
    let mut waiting =
        command.args(["request", "submit", "--wait"]).args(spec).stderr(Stdio::piped()).spawn().map(Running).unwrap();
    let mut said = std::io::BufReader::new(waiting.0.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let id = line.strip_suffix(" submitted\n").unwrap().to_owned();
    signal(waiting.id(), "INT");
    assert_eq!(waiting.wait().code(), Some(130));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    for part in [
        &format!("error: stopped waiting; {id} continues\n"),
        &format!("'comity request watch {id}'"),
        &format!("'comity request cancel {id}'"),
    ] {
        assert!(rest.contains(part), "{part}: {rest}");
    }
    assert!(stdout(&as_alice(&["request", "cancel", &id])).contains("cancelled"), "{id}");
}
