//! The section `burst` of the agent's configuration.

use comity_agent_model::settings::{InvalidSettings, SettingChecks};
use comity_types::is_dns_label;
use serde::{Deserialize, Serialize};

/// Longest time that a Job's pods are gathered.
const MAX_DEBOUNCE_MS: u64 = 5_000;
/// Longest cooldown, and longest time that a pod is held: a day.
const MAX_SECONDS: u64 = 86_400;
/// Most CPU and memory requested with each GPU: a thousand cores, 16 TiB.
const MAX_CPU_MILLI: u64 = 1_000_000;
const MAX_MEMORY_MIB: u64 = 16 << 20;

/// How GPU pods of this cluster become requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BurstSettings {
    /// Whether GPU pods burst.
    pub enabled: bool,
    /// How long the pods of one owner are gathered into one request.
    pub debounce_milliseconds: u64,
    /// How long an unused lease is kept, unless the namespace sets it.
    pub cooldown_seconds: u64,
    /// How long a pod is held by the gate at most; it then waits as an ordinary pending pod.
    pub hold_seconds: u64,
    /// GPU class where neither pod nor namespace names one; empty: they must.
    pub default_class: String,
    /// Tenant where the namespace names none; empty: it must.
    pub default_tenant: String,
    /// Length of a lease, unless the namespace sets it; 0: the federation's default.
    pub duration_seconds: u64,
    /// GPUs that one namespace may hold at once, unless it sets its own limit.
    pub max_gpus: u32,
    /// Requests that one namespace may have at once, unless it sets its own limit.
    pub max_requests: u32,
    /// Minimum CPU requested with each GPU, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Minimum memory requested with each GPU, in MiB.
    pub memory_mib_per_gpu: u64,
    /// Whether Kueue's ProvisioningRequests of class `offload.comity.dev` are served.
    pub provisioning_requests: bool,
}

impl Default for BurstSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            debounce_milliseconds: 250,
            cooldown_seconds: 60,
            hold_seconds: 300,
            default_class: String::new(),
            default_tenant: String::new(),
            duration_seconds: 0,
            max_gpus: 64,
            max_requests: 16,
            cpu_milli_per_gpu: 100,
            memory_mib_per_gpu: 128,
            provisioning_requests: false,
        }
    }
}

impl BurstSettings {
    /// Checks all values.
    ///
    /// # Errors
    /// [`InvalidSettings`], naming fields, values and remedies.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        let mut checks = SettingChecks::default();
        self.gather(&mut checks);
        checks.finish()
    }

    /// Collects the invalid values.
    pub fn gather(&self, checks: &mut SettingChecks) {
        for (field, value, most) in [
            ("burst.debounceMilliseconds", self.debounce_milliseconds, MAX_DEBOUNCE_MS),
            ("burst.cooldownSeconds", self.cooldown_seconds, MAX_SECONDS),
            ("burst.holdSeconds", self.hold_seconds, MAX_SECONDS),
            ("burst.durationSeconds", self.duration_seconds, 90 * MAX_SECONDS),
            ("burst.cpuMilliPerGpu", self.cpu_milli_per_gpu, MAX_CPU_MILLI),
            ("burst.memoryMibPerGpu", self.memory_mib_per_gpu, MAX_MEMORY_MIB),
        ] {
            if value > most {
                checks.refuse(field, value, format!("write at most {most}"));
            }
        }
        for (field, value) in
            [("burst.defaultClass", &self.default_class), ("burst.defaultTenant", &self.default_tenant)]
        {
            if !value.is_empty() && !is_dns_label(value) {
                checks.refuse(field, value, "write a DNS label: lower-case letters, digits and '-'");
            }
        }
        for (field, value) in [("burst.maxGpus", self.max_gpus), ("burst.maxRequests", self.max_requests)] {
            if value == 0 {
                checks.refuse(field, value, "write at least 1, or turn burst.enabled off");
            }
        }
        if self.provisioning_requests && !self.enabled {
            checks.refuse("burst.provisioningRequests", true, "set burst.enabled, too: GpuRequests carry them");
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_mistakes_are_named() {
        BurstSettings::default().check().unwrap();
        let refused = |change: &dyn Fn(&mut BurstSettings)| {
            let mut settings = BurstSettings::default();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(refused(&|s| s.debounce_milliseconds = 60_000).contains("burst.debounceMilliseconds \"60000\""));
        assert!(refused(&|s| s.default_class = "Big".to_owned()).contains("burst.defaultClass \"Big\""));
        assert!(refused(&|s| s.max_requests = 0).contains("burst.maxRequests"));
        assert!(refused(&|s| s.provisioning_requests = true).contains("burst.provisioningRequests \"true\""));
    }

    #[test]
    fn a_section_of_the_configuration_is_read() {
        let settings: BurstSettings = serde_json::from_str(r#"{"enabled": true, "maxGpus": 8}"#).unwrap();
        settings.check().unwrap();
        assert!(serde_json::from_str::<BurstSettings>(r#"{"enable": true}"#).is_err());
    }
}
