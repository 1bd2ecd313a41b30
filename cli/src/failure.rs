//! Why a command failed, rendered for people and for scripts.

use comity_proto::error_detail;
use comity_runtime::tls::{ConnectError, DialError};
use comity_types::{printable_json, printable_line, redact_secrets};
use serde::Serialize;
use tonic::{Code, Status};

use crate::exit::Exit;
use crate::wire_names::{self, WrittenIn};

/// A failure shows at most this much of a value.
const SHOWN_VALUE_CHARS: usize = 200;
/// Code of a call that would exceed a limit of the broker.
const LIMIT_REACHED: &str = "limit-reached";

/// Why a command failed. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// Stable code for scripts, such as "policy-denied".
    pub code: String,
    /// One sentence for people.
    pub reason: String,
    /// The invalid field or flag; may be empty.
    pub field: String,
    /// Its value; may be empty.
    pub value: String,
    /// Remedy; may be empty.
    pub remedy: String,
    /// Where the caller wrote the fields that the texts name.
    pub written_in: WrittenIn,
}

/// The object that `-o json` and `-o yaml` print on standard error.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorObject<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorFields<'a> {
    code: &'a str,
    reason: String,
    field: String,
    value: String,
    remedy: String,
    exit_code: u8,
}

impl Failure {
    /// A failure without field, value or remedy.
    pub fn new(exit: Exit, code: &str, reason: impl Into<String>) -> Self {
        Self {
            exit,
            code: code.to_owned(),
            reason: reason.into(),
            field: String::new(),
            value: String::new(),
            remedy: String::new(),
            written_in: WrittenIn::Flags,
        }
    }

    /// The command line or a request file is invalid.
    pub fn usage(reason: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", reason)
    }

    /// The configuration cannot be used.
    pub fn configuration(reason: impl Into<String>) -> Self {
        Self::new(Exit::Configuration, "bad-configuration", reason)
    }

    /// Nobody answered in time.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(Exit::Unavailable, "unavailable", reason)
    }

    /// The broker, a check or the state of an object forbids it.
    pub fn refused(code: &str, reason: impl Into<String>) -> Self {
        Self::new(Exit::Refused, code, reason)
    }

    /// Adds the invalid field or flag and its value.
    #[must_use]
    pub fn field(mut self, field: &str, value: impl ToString) -> Self {
        field.clone_into(&mut self.field);
        self.value = value.to_string().chars().take(SHOWN_VALUE_CHARS).collect();
        self
    }

    /// Adds a remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Names fields as in a request file, if the request was in one.
    #[must_use]
    pub const fn written_in(mut self, written_in: WrittenIn) -> Self {
        self.written_in = written_in;
        self
    }

    /// As `comity run` ends with it: its other codes are the command's. Wrong flags keep theirs, which the command line's
    /// library gives, too.
    pub(crate) fn of_run(self) -> Self {
        match self.exit {
            Exit::Usage | Exit::Interrupted => self,
            _ => Self { exit: Exit::NotRun, ..self },
        }
    }

    /// With the exit code of every error under `--detailed-exitcode`, where 2 stands for changes.
    #[must_use]
    pub(crate) fn with_detailed_exitcode(self) -> Self {
        Self { exit: Exit::Refused, ..self }
    }

    /// Whether a read that failed like this may succeed later: no broker answered, or the caller's share was used up.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.exit == Exit::Unavailable || self.is_limit()
    }

    /// Whether the broker refused the call because of a limit.
    #[must_use]
    pub fn is_limit(&self) -> bool {
        self.code == LIMIT_REACHED
    }

    /// For people, with the flag or the file's field in place of each wire field.
    #[must_use]
    pub fn text(&self) -> String {
        // Field by field: a key that was cut off may hide the rest of its text.
        let shown = |text: &str| wire_names::as_written(self.written_in, &self.field, &redact_secrets(text));
        let mut text = format!("error: {}\n", shown(&self.reason));
        if !self.field.is_empty() {
            let value = redact_secrets(&self.value);
            let value = match wire_names::value_as_written(self.written_in, &self.field, &value).as_str() {
                "" => String::new(),
                // A broker escaped its text already.
                value => format!(" = \"{}\"", printable_line(value)),
            };
            let field = wire_names::field_as_written(self.written_in, &redact_secrets(&self.field));
            text.push_str(&format!("field: {field}{value}\n"));
        }
        if !self.remedy.is_empty() {
            text.push_str(&format!("remedy: {}\n", shown(&self.remedy)));
        }
        text
    }

    /// For scripts: one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        let object = ErrorObject {
            error: ErrorFields {
                code: &self.code,
                reason: redact_secrets(&self.reason),
                field: redact_secrets(&self.field),
                value: redact_secrets(&self.value),
                remedy: redact_secrets(&self.remedy),
                exit_code: self.exit.number(),
            },
        };
        let json = serde_json::to_string(&object).expect("strings and numbers always serialise");
        printable_json(&json).into_owned()
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        match error_detail(&status) {
            Some(detail) => Self {
                exit: exit_of(status.code(), &detail.code),
                code: detail.code,
                reason: detail.reason,
                field: detail.field,
                value: detail.value,
                remedy: detail.remedy,
                written_in: WrittenIn::Flags,
            },
            None => without_detail(&status),
        }
    }
}

/// Whether one side refused the other's certificate, most often because it is of another federation. Retrying cannot
/// help.
fn certificate_refused(status: &Status) -> bool {
    let refused = |error: &DialError| matches!(error, DialError::Certificate(_) | DialError::SomebodyElse(_));
    ConnectError::behind(status).is_some_and(|unreached| unreached.tried().iter().any(|(_, error)| refused(error)))
}

/// The failure of a call that never reached a broker, or whose broker attached no detail.
fn without_detail(status: &Status) -> Failure {
    if certificate_refused(status) {
        return Failure::new(Exit::Permission, "certificate-refused", status.message()).remedy(
            "choose a context of this federation ('comity context list'), or give the directory with your certificate: \
             --identity (COMITY_IDENTITY); if the federation's root was replaced, 'comity login' with a new token, which a \
             maintainer makes with 'comity user add'",
        );
    }
    let (code, remedy) = match status.code() {
        Code::Unavailable => (
            "unavailable",
            "check that a broker runs at these addresses: 'comity context show' or --broker (COMITY_BROKER)",
        ),
        Code::DeadlineExceeded => ("timeout", "try again; if it persists, run 'comity raft status'"),
        Code::Unauthenticated => (
            "unauthenticated",
            "run 'comity login', or give a directory with a valid certificate: --identity (COMITY_IDENTITY)",
        ),
        Code::Unimplemented => ("unimplemented", "the broker is older than this client; compare with 'comity version'"),
        _ => ("broker-error", "see the broker's log"),
    };
    let reason = if status.message().is_empty() { status.code().description() } else { status.message() };
    Failure::new(exit_of(status.code(), code), code, reason).remedy(remedy)
}

/// The stable code wins where it says more than the gRPC code: a denial by policy is not a missing permission.
fn exit_of(grpc: Code, code: &str) -> Exit {
    match (code, grpc) {
        ("policy-denied", _) => Exit::Refused,
        ("invalid-token", _) => Exit::Permission,
        ("unservable", _) => Exit::Unservable,
        (_, Code::InvalidArgument | Code::OutOfRange) => Exit::Usage,
        (_, Code::NotFound) => Exit::NotFound,
        (_, Code::PermissionDenied | Code::Unauthenticated) => Exit::Permission,
        (_, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Internal | Code::Unknown) => {
            Exit::Unavailable
        }
        _ => Exit::Refused,
    }
}

#[cfg(test)]
mod tests {
    use comity_proto::{ErrorDetails, error_status, v1};

    use super::*;

    fn status(code: Code, stable: &str) -> Status {
        let detail = v1::ErrorDetail {
            code: stable.to_owned(),
            reason: "no quota is left".to_owned(),
            field: "spec.gpus.count".to_owned(),
            value: "9".to_owned(),
            remedy: "ask for 8".to_owned(),
        };
        error_status(code, &detail, ErrorDetails::new())
    }

    #[test]
    fn a_refusal_is_shown_whole() {
        let failure = Failure::from(status(Code::PermissionDenied, "policy-denied"));
        assert_eq!(failure.text(), "error: no quota is left\nfield: --gpus = \"9\"\nremedy: ask for 8\n");
        assert_eq!(
            failure.json(),
            concat!(
                r#"{"error":{"code":"policy-denied","reason":"no quota is left","field":"spec.gpus.count","#,
                r#""value":"9","remedy":"ask for 8","exitCode":1}}"#
            )
        );
    }

    #[test]
    fn what_a_broker_escaped_is_not_escaped_again() {
        let failure = Failure::refused("not-found", r#"no lease "\u{1b}[2J""#).field("lease", r"\u{1b}[2J");
        assert_eq!(failure.text(), "error: no lease \"\\u{1b}[2J\"\nfield: <LEASE> = \"\\u{1b}[2J\"\n");
        let raw = Failure::usage("no such file").field("--file", "a\u{1b}b");
        assert_eq!(raw.text(), "error: no such file\nfield: --file = \"a\\u{1b}b\"\n");
    }

    #[test]
    fn a_key_that_was_cut_off_hides_neither_the_rest_nor_the_json() {
        let key = format!("-----BEGIN PRIVATE KEY-----\n{}", "MIGHAgEAMBMGByqGSM49 ".repeat(3));
        for reason in [format!("lease \"{key}…\" is not a lease id"), format!("cannot read {key}")] {
            let failure = Failure::usage(reason).field("lease", &key).remedy("write an id such as lease-7");
            let text = failure.text();
            assert!(text.ends_with("\nfield: <LEASE>\nremedy: write an id such as lease-7\n"), "{text}");
            let json: serde_json::Value = serde_json::from_str(&failure.json()).expect("JSON");
            assert_eq!(json["error"]["remedy"], "write an id such as lease-7");
            assert_eq!((&json["error"]["value"], &json["error"]["exitCode"]), (&"[redacted]".into(), &2.into()));
            assert!(!text.contains("MIGH") && !json.to_string().contains("MIGH"), "{text}{json}");
        }
    }

    #[test]
    fn a_request_that_nobody_can_serve_names_the_flag_that_queues_it() {
        let mut failure = Failure::from(status(Code::FailedPrecondition, "unservable"));
        failure.field.clear();
        failure.remedy = "ask for 8; or set queue_anyway, and the request waits for such a change".to_owned();
        let remedy = "remedy: ask for 8; or add --queue-anyway, and the request waits for such a change\n";
        assert_eq!(failure.text(), format!("error: no quota is left\n{remedy}"));
        assert_eq!(failure.exit.number(), 6);
    }

    #[test]
    fn each_kind_has_its_exit_code() {
        for (grpc, stable, exit) in [
            (Code::InvalidArgument, "invalid-field", 2),
            (Code::NotFound, "not-found", 3),
            (Code::PermissionDenied, "permission-denied", 4),
            (Code::PermissionDenied, "policy-denied", 1),
            (Code::Unauthenticated, "unauthenticated", 4),
            (Code::FailedPrecondition, "wrong-state", 1),
            (Code::FailedPrecondition, "unservable", 6),
            (Code::AlreadyExists, "idempotency-conflict", 1),
            (Code::ResourceExhausted, "limit-reached", 1),
            (Code::Unavailable, "unavailable", 5),
        ] {
            assert_eq!(Failure::from(status(grpc, stable)).exit.number(), exit, "{stable}");
        }
        let passes = |grpc, stable| Failure::from(status(grpc, stable)).is_passing();
        assert!(passes(Code::ResourceExhausted, "limit-reached") && passes(Code::Unavailable, "unavailable"));
        assert!(!passes(Code::PermissionDenied, "revoked") && !passes(Code::ResourceExhausted, "message-too-large"));
        let bare = Failure::from(Status::unavailable("127.0.0.1:1: refused"));
        assert_eq!((bare.exit, bare.reason.as_str()), (Exit::Unavailable, "127.0.0.1:1: refused"));
        assert!(bare.remedy.contains("COMITY_BROKER"));
    }
}
