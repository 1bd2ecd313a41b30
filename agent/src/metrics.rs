//! Metrics of the agent, with the prefix `comity_agent_`.

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The agent's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// 1 if this replica is the active one.
    pub active: IntGauge,
    /// 1 while a stream to a broker is connected.
    pub connected: IntGauge,
    /// Streams opened.
    pub streams: IntCounter,
    /// Revision of the desired state in force.
    pub desired_revision: IntGauge,
    /// Messages that no broker has acknowledged.
    pub outbox: IntGauge,
    /// Messages that a broker refused for good, by code.
    pub refused: IntCounterVec,
    /// Heads of the audit log that do not continue the anchor.
    pub refused_audit_heads: IntCounter,
    /// Commits of the policy that brokers put into force, and that not all owners signed.
    pub refused_policies: IntCounter,
    /// 1 while the brokers' commit is another one than the verified one.
    pub signed_policy_behind: IntGauge,
    /// Leases that this side refused, by code.
    pub refused_leases: IntCounterVec,
    /// Other clusters that showed an identity key which is refused until a person decides.
    pub refused_keys: IntGauge,
    /// Steps carried out, by step and outcome (`done`, `retry`, `reported`).
    pub steps: IntCounterVec,
    /// How long steps take.
    pub step_seconds: HistogramVec,
    /// Leases here, by side.
    pub leases: IntGaugeVec,
    /// Best rate within a day at which bytes arrived from other clusters, in Mbit/s.
    pub measured_mbits: IntGaugeVec,
    /// Tunnels in the fabric.
    pub tunnels: IntGauge,
    /// Thousandths of GPUs lent, by this agent's own count.
    pub lent_milli: IntGauge,
    /// Unwanted objects that were removed.
    pub garbage: IntCounter,
    /// Pods of leases that run where their lease was not placed, or hold more than was placed there.
    pub drifted: IntGauge,
    /// Corrections of such pods, by outcome (`evicted`, `deleted`, `refused`, `failed`).
    pub drift_corrections: IntCounterVec,
    /// Devices by use (`free`, `local`, `lent`, `conflict`), as kubelets and claims report it.
    pub devices: IntGaugeVec,
    /// Device readers, by state (`read`, `failed`).
    pub device_readers: IntGaugeVec,
    /// Admission policies of guests that are not in force. While there are any, this cluster lends nothing.
    pub missing_policies: IntGauge,
    /// When the certificate ends, in seconds since 1970.
    pub certificate_not_after: IntGauge,
    /// When the certificate of the admission webhooks ends, in seconds since 1970; 0 if none is served.
    pub webhook_certificate_not_after: IntGauge,
}

impl Metrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// If the registry already has metrics of these names.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(format!("comity_agent_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(format!("comity_agent_{name}"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let counters = IntCounterVec::new(Opts::new(format!("comity_agent_{name}"), help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let step_seconds = HistogramVec::new(
            HistogramOpts::new("comity_agent_step_seconds", "Duration of the steps that the agent carries out.")
                .buckets(vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0]),
            &["step"],
        )?;
        registry.register(Box::new(step_seconds.clone()))?;
        let gauges = |name: &str, help: &str, label: &str| -> Result<IntGaugeVec, prometheus::Error> {
            let gauges = IntGaugeVec::new(Opts::new(format!("comity_agent_{name}"), help), &[label])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok(gauges)
        };
        let measured = Opts::new(
            "comity_agent_fabric_measured_mbits",
            "Best rate within a day at which bytes arrived from a cluster through tunnels, in Mbit/s.",
        );
        let measured_mbits = IntGaugeVec::new(measured, &["cluster"])?;
        registry.register(Box::new(measured_mbits.clone()))?;
        Ok(Self {
            measured_mbits,
            active: gauge("active", "1 if this replica is the active agent, 0 if it is a standby.")?,
            connected: gauge("uplink_connected", "1 while a stream to a broker is connected.")?,
            streams: counter("uplink_streams_total", "Streams to brokers that were opened.")?,
            desired_revision: gauge("desired_revision", "Revision of the desired state in force.")?,
            outbox: gauge("outbox_messages", "Messages that no broker has acknowledged.")?,
            refused: counters("refused_total", "Messages that a broker refused for good.", &["code"])?,
            refused_audit_heads: counter(
                "refused_audit_heads_total",
                "Heads of the audit log that do not continue the one seen before.",
            )?,
            refused_policies: counter(
                "refused_policy_commits_total",
                "Commits in force that this agent refused: unsigned, no descendant, or not readable.",
            )?,
            signed_policy_behind: gauge(
                "signed_policy_behind",
                "1 while the commit in force is another one than the verified one.",
            )?,
            refused_leases: counters("refused_leases_total", "Leases that this side refused.", &["code"])?,
            refused_keys: gauge("refused_identity_keys", "Other clusters that showed another identity key.")?,
            steps: counters("steps_total", "Steps carried out.", &["step", "outcome"])?,
            step_seconds,
            leases: gauges("leases", "Leases here, by side.", "side")?,
            tunnels: gauge("tunnels", "Tunnels in the fabric.")?,
            lent_milli: gauge("lent_gpu_milli", "Thousandths of GPUs lent, by the agent's own count.")?,
            garbage: counter("garbage_collected_total", "Unwanted objects that were removed.")?,
            drifted: gauge("drifted_pods", "Pods of leases beyond their lease's part of their node.")?,
            drift_corrections: counters("drift_corrections_total", "Evictions of drifted pods.", &["outcome"])?,
            devices: gauges("devices", "Devices by use; one in a device conflict counts as conflict, too.", "use")?,
            device_readers: gauges("device_readers", "Device readers that were read, and that were not.", "state")?,
            missing_policies: gauge("missing_policies", "Admission policies of guests that are not in force.")?,
            certificate_not_after: gauge("certificate_not_after_seconds", "When the certificate ends, in Unix time.")?,
            webhook_certificate_not_after: gauge(
                "webhook_certificate_not_after_seconds",
                "When the certificate of the admission webhooks ends, in Unix time; 0 if none is served.",
            )?,
        })
    }
}
