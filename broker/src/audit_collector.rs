//! Sends records of the audit log to a collector, as OTLP logs over gRPC.
//!
//! The protocol: <https://opentelemetry.io/docs/specs/otlp/>, the data model:
//! <https://opentelemetry.io/docs/specs/otel/logs/data-model/>.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_audit::{AuditRecord, Entry, SealedRecord};
use comity_runtime::{Secret, atomic_file, private_files};
use comity_types::{printable, redact_secrets, redact_user};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tonic::Request;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri};

/// Time to connect, and time for one answer.
const COLLECTOR_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of the files with headers and authorities.
const MAX_COLLECTOR_FILE_BYTES: u64 = 64 << 10;
/// Characters of what a collector says.
const MAX_COLLECTOR_TEXT_CHARS: usize = 200;
/// Name of the event of each record.
const EVENT: &str = "dev.comity.audit";

/// Where the audit log is sent.
#[derive(Debug, Clone)]
pub struct AuditCollector {
    endpoint: Uri,
    headers: Option<PathBuf>,
    authorities: Option<PathBuf>,
}

/// An endpoint that is none. Names no secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEndpoint {
    /// The endpoint, as it may be shown.
    pub shown: String,
    /// The error and the remedy.
    pub reason: String,
}

/// Why records did not reach the collector. Names no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotExported(pub(crate) String);

impl NotExported {
    fn saying(what: &str, said: &dyn std::fmt::Display) -> Self {
        Self(format!("{what}: {}", shown(&said.to_string())))
    }
}

impl AuditCollector {
    /// A collector at `endpoint`, as in `https://collector.example:4317`. `headers` is a private file with lines
    /// `NAME: VALUE`, and `authorities` a PEM file with authorities that count instead of those of this machine.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] if it is not such a URL.
    pub fn new(
        endpoint: &str,
        headers: Option<PathBuf>,
        authorities: Option<PathBuf>,
    ) -> Result<Self, InvalidEndpoint> {
        let refused = |reason: &str| InvalidEndpoint {
            shown: redact_user(&redact_secrets(endpoint)),
            reason: format!("{reason}; want e.g. https://collector.example:4317"),
        };
        let uri: Uri = endpoint.parse().map_err(|_| refused("it is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| refused("it names no host"))?;
        if !matches!(uri.scheme_str(), Some("https" | "http")) {
            return Err(refused("it begins with neither https:// nor http://"));
        }
        if authority.as_str().contains('@') {
            return Err(refused("it has a user; put credentials into the file of --audit-otlp-headers"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(refused("it has a path, and OTLP over gRPC has none"));
        }
        let is_plain = uri.scheme_str() == Some("http");
        if is_plain && authorities.is_some() {
            return Err(refused("it has no TLS, for which --audit-otlp-ca names authorities"));
        }
        if is_plain && headers.is_some() && !is_loopback(authority.host()) {
            let reason = "it has no TLS, and --audit-otlp-headers go without it to 127.0.0.1 or [::1] alone";
            return Err(refused(reason));
        }
        Ok(Self { endpoint: uri, headers, authorities })
    }

    /// The URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    /// The file with headers.
    #[must_use]
    pub fn headers_file(&self) -> Option<&Path> {
        self.headers.as_deref()
    }

    /// The file with authorities.
    #[must_use]
    pub fn authorities_file(&self) -> Option<&Path> {
        self.authorities.as_deref()
    }

    /// Connects. Reads the files each time, so that a new token needs no restart.
    pub(crate) async fn connect(&self) -> Result<Connection, NotExported> {
        let headers = match &self.headers {
            Some(file) => {
                read_headers(file).map_err(|error| NotExported::saying("cannot use --audit-otlp-headers", &error))?
            }
            None => Vec::new(),
        };
        let unreachable = |error: &dyn std::fmt::Display| {
            NotExported::saying(&format!("cannot reach the collector {}", self.endpoint), error)
        };
        let mut endpoint =
            Endpoint::from(self.endpoint.clone()).connect_timeout(COLLECTOR_CONNECT_TIMEOUT).timeout(EXPORT_TIMEOUT);
        if self.endpoint.scheme_str() == Some("https") {
            let tls = match &self.authorities {
                Some(file) => {
                    let pem = atomic_file::read_bounded(file, MAX_COLLECTOR_FILE_BYTES)
                        .map_err(|error| NotExported::saying("cannot read --audit-otlp-ca", &error))?;
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
                }
                None => ClientTlsConfig::new().with_native_roots(),
            };
            endpoint = endpoint.tls_config(tls).map_err(|error| unreachable(&with_sources(&error)))?;
        }
        let channel = endpoint.connect().await.map_err(|error| unreachable(&with_sources(&error)))?;
        Ok(Connection { client: LogsServiceClient::new(channel), headers })
    }
}

/// A connection to the collector.
pub(crate) struct Connection {
    client: LogsServiceClient<Channel>,
    headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
}

/// What a collector did with records that it acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exported {
    /// Records that it refused for good. The protocol forbids to send them again.
    pub(crate) rejected: u64,
    /// Its reason.
    pub(crate) reason: String,
}

impl Connection {
    /// Sends records. Once the collector acknowledges them, they are its own.
    pub(crate) async fn export(&mut self, records: ExportLogsServiceRequest) -> Result<Exported, NotExported> {
        let mut request = Request::new(records);
        for (name, value) in &self.headers {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        let answer = self.client.export(request).await.map_err(|status| {
            NotExported::saying("the collector refuses", &format!("{:?}: {}", status.code(), status.message()))
        })?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        let reason = shown(&partial.error_message);
        Ok(Exported { rejected: u64::try_from(partial.rejected_log_records).unwrap_or_default(), reason })
    }
}

/// Whether a host is a loopback address. A name is what a resolver says, `localhost` too.
fn is_loopback(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// What a collector says, for the log: redacted before it is cut, since a part of a secret may not look like one.
fn shown(said: &str) -> String {
    redact_secrets(&printable(said.trim())).chars().take(MAX_COLLECTOR_TEXT_CHARS).collect()
}

/// The call that exports records of a federation.
pub(crate) fn request_of(federation: &str, records: &[SealedRecord], now_ms: u64) -> ExportLogsServiceRequest {
    let resource = Resource {
        attributes: vec![text("service.name", "comity-broker"), text("comity.federation", federation)],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: EVENT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let log_records = records.iter().map(|record| log_record(record, now_ms)).collect();
    let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records, schema_url: String::new() }];
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs { resource: Some(resource), scope_logs, schema_url: String::new() }],
    }
}

/// The body is exactly the line that is hashed, so that the collector's copy can be verified.
fn log_record(record: &SealedRecord, now_ms: u64) -> LogRecord {
    let mut attributes =
        vec![number("comity.audit.index", record.index), text("comity.audit.hash", &record.hash.to_string())];
    let mut time_ms = now_ms;
    let mut severity = SeverityNumber::Info;
    if let Ok(Entry::Record(parsed, _)) = Entry::parse(&record.line) {
        let AuditRecord { actor, act, subject, outcome, request, tenant, .. } = parsed.as_ref();
        time_ms = parsed.time_ms;
        if outcome != comity_audit::DONE {
            severity = SeverityNumber::Warn;
        }
        for (name, value) in [
            ("comity.audit.act", act),
            ("comity.audit.actor", actor),
            ("comity.audit.subject.kind", &subject.kind),
            ("comity.audit.subject.id", &subject.id),
            ("comity.audit.outcome", outcome),
            ("comity.audit.request", request),
            ("comity.audit.tenant", tenant),
        ] {
            if !value.is_empty() {
                attributes.push(text(name, value));
            }
        }
    }
    LogRecord {
        time_unix_nano: time_ms.saturating_mul(1_000_000),
        observed_time_unix_nano: now_ms.saturating_mul(1_000_000),
        severity_number: severity.into(),
        severity_text: if severity == SeverityNumber::Info { "INFO" } else { "WARN" }.to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(record.line.clone())) }),
        attributes,
        event_name: EVENT.to_owned(),
        ..LogRecord::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Lines `NAME: VALUE` of a private file; empty lines and those with `#` are left out.
fn read_headers(file: &Path) -> Result<Vec<(AsciiMetadataKey, AsciiMetadataValue)>, String> {
    private_files::check(file).map_err(|error| error.to_string())?;
    let bytes = atomic_file::read_bounded(file, MAX_COLLECTOR_FILE_BYTES).map_err(|error| error.to_string())?;
    let content = Secret::new(String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?);
    let lines = content.expose().lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| {
            // A wrong line may have a token, so that only its number is shown.
            let wrong = || format!("line {} is not of the form NAME: VALUE", index + 1);
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            let name = name.trim().to_ascii_lowercase().parse().map_err(|_| wrong())?;
            let mut value: AsciiMetadataValue = value.trim().parse().map_err(|_| wrong())?;
            value.set_sensitive(true);
            Ok((name, value))
        })
        .collect()
}

/// An error with what caused it, which tonic leaves out.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        said = format!("{said}: {cause}");
        source = cause.source();
    }
    said
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_endpoint_is_refused_without_its_password() {
        for (endpoint, part) in [
            ("/collector", "names no host"),
            ("collector:4317", "begins with neither"),
            ("ftp://collector:4317", "begins with neither"),
            ("https://me:password=hunter2@collector:4317", "has a user"),
            ("https://hunter2@collector:4317", "has a user"),
            ("https://collector:4318/v1/logs", "has a path"),
            ("", "is not a URL"),
        ] {
            let refused = AuditCollector::new(endpoint, None, None).unwrap_err();
            assert!(refused.reason.contains(part) && !format!("{refused:?}").contains("hunter2"), "{refused:?}");
        }
        let file = || Some(PathBuf::from("file"));
        let refused = AuditCollector::new("http://collector:4317", file(), None).unwrap_err();
        assert!(refused.reason.contains("--audit-otlp-headers go without it to 127.0.0.1"), "{refused:?}");
        AuditCollector::new("http://collector:4317", None, file()).unwrap_err();
        AuditCollector::new("http://collector:4317", None, None).unwrap();
        AuditCollector::new("http://localhost:4317", file(), None).unwrap_err();
        AuditCollector::new("http://127.0.0.1:4317", file(), None).unwrap();
        AuditCollector::new("http://[::1]:4317", file(), None).unwrap();
    }

    #[test]
    fn headers_are_read_from_a_private_file_and_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("headers");
        atomic_file::write(&file, b"# for the collector\n\nAuthorization: Bearer hunter2\n", atomic_file::PRIVATE)
            .unwrap();
        let headers = read_headers(&file).unwrap();
        let (name, value) = headers.first().unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer hunter2"));
        assert!(!format!("{headers:?}").contains("hunter2"), "{headers:?}");
        atomic_file::write(&file, b"a: b\nhunter2\n", atomic_file::PRIVATE).unwrap();
        let refused = read_headers(&file).unwrap_err();
        assert!(refused.contains("line 2") && !refused.contains("hunter2"), "{refused}");
        atomic_file::write(&file, b"a: b\n", 0o644).unwrap();
        read_headers(&file).unwrap_err();
    }
}
