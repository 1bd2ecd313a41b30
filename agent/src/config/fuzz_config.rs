//! Fuzzes configuration files.

use std::path::Path;

use comity_fuzz::fuzz;

use super::Config;

const LARGE: &str = "\
stateDir: /var/lib/comity-agent
brokers: ['b1.test:7443', '[::1]:7443']
joinTokenFile: /etc/comity/token
requireVouchers: false
kubernetes: {context: kind}
sharing:
  maxLentGpus: 4
reserve: {gpusPerNode: 1}
rdma:
- {resource: nvidia.com/ib_vf, network: ib0, gbits: 100}
fabric:
  endpoints: ['gw:0']
  mode: tun
  tun: {mtu: 1380}
liqo: {enabled: true}
burst: {enabled: true, maxGpus: 8}
log: {format: json, filter: 'info,comity_agent=debug'}
";

#[test]
fn configuration_files() {
    // Each mistake is repaired, and the file read again.
    let mistaken = "stateDri: /a\nsharing:\n  maxLentGpus: many\nlog: {fliter: info}\n";
    let small = "inventoryFile: /etc/comity/nodes.yaml\nborrowing: {}\n";
    let path = Path::new("agent.yaml");
    let read_or_refused = move |bytes: &[u8]| match Config::parse(path, bytes) {
        Ok(config) => {
            let checked = config.check().map_err(|error| error.to_string());
            assert!(!checked.is_err_and(|error| error.contains(char::is_control)), "an error is one line of text");
            assert!(!config.dump().is_empty(), "what is in force can be shown");
            true
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("agent.yaml") && !error.contains(char::is_control), "{error:?}");
            false
        }
    };
    assert!(!read_or_refused(mistaken.as_bytes()));
    let large = format!("{LARGE}voucher: ed25519:{}==\n", "A".repeat(86));
    let valid = [large, small.to_owned()].map(String::into_bytes).to_vec();
    fuzz!("agent_config", valid, read_or_refused);
}
