//! The configuration: every invalid value is one check.

use comity_runtime::checks::Check;

use crate::config::{Config, ConfigError};

const CONFIGURATION_CHECK: &str = "configuration";

pub(super) fn check(config: &Config) -> Vec<Check> {
    match config.check() {
        Ok(()) => vec![Check::ok(CONFIGURATION_CHECK, source(config))],
        Err(ConfigError::Invalid(invalid)) => invalid
            .0
            .iter()
            .map(|setting| Check::failed(CONFIGURATION_CHECK, setting.problem(), setting.reason.clone()))
            .collect(),
        Err(error) => vec![Check::failed(CONFIGURATION_CHECK, error.to_string(), "docs/join.md lists all fields")],
    }
}

fn source(config: &Config) -> String {
    match (&config.inventory_file, &config.kubernetes) {
        (Some(file), _) => format!("a host without Kubernetes, inventory {}", file.display()),
        (None, Some(kubernetes)) => match &kubernetes.kubeconfig {
            Some(path) => format!("a Kubernetes cluster, kubeconfig {}", path.display()),
            None => "a Kubernetes cluster, the pod's ServiceAccount".to_owned(),
        },
        (None, None) => String::new(),
    }
}
