//! The state of a container, as `podman container inspect` writes it.

use jiff::Timestamp;
use serde::Deserialize;

/// The state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// Made, never started.
    Created,
    /// Its first process.
    Running { pid: i32, since: Timestamp },
    /// Between two states.
    Changing,
    /// Ended.
    Ended(Exit),
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) oom_killed: bool,
    pub(crate) started: Timestamp,
    pub(crate) finished: Timestamp,
    /// Why it could not be started.
    pub(crate) error: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    state: InspectedState,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    status: String,
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    exit_code: i32,
    #[serde(default, rename = "OOMKilled")]
    oom_killed: bool,
    #[serde(default)]
    started_at: String,
    #[serde(default)]
    finished_at: String,
    #[serde(default)]
    error: String,
}

impl ContainerState {
    /// Reads podman's list of one container.
    pub(super) fn read(output: &[u8]) -> Result<Self, String> {
        let [inspected]: [Inspected; 1] = serde_json::from_slice(output).map_err(|error| error.to_string())?;
        let state = inspected.state;
        let time = |text: &str| text.parse::<Timestamp>().unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(match state.status.as_str() {
            "created" | "configured" | "initialized" => Self::Created,
            "running" | "paused" if state.pid > 0 => Self::Running { pid: state.pid, since: time(&state.started_at) },
            "exited" | "stopped" => Self::Ended(Exit {
                code: state.exit_code,
                oom_killed: state.oom_killed,
                started: time(&state.started_at),
                finished: time(&state.finished_at),
                error: state.error,
            }),
            _ => Self::Changing,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn states_of_podman_are_read() {
        let read = |state: &str| ContainerState::read(format!(r#"[{{"Image":"abc","State":{state}}}]"#).as_bytes());
        assert_eq!(read(r#"{"Status":"created"}"#), Ok(ContainerState::Created));
        assert_eq!(read(r#"{"Status":"stopping","Pid":4}"#), Ok(ContainerState::Changing));
        let running = read(r#"{"Status":"running","Pid":7,"StartedAt":"2026-12-01T13:00:00.5+01:00"}"#).unwrap();
        let since = "2026-12-01T12:00:00.5Z".parse().unwrap();
        assert_eq!(running, ContainerState::Running { pid: 7, since });
        let ended = read(r#"{"Status":"exited","ExitCode":137,"OOMKilled":true}"#).unwrap();
        assert!(matches!(ended, ContainerState::Ended(Exit { code: 137, oom_killed: true, .. })), "{ended:?}");
        assert!(ContainerState::read(b"[]").is_err());
    }
}
