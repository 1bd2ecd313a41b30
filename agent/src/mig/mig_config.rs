//! mig-parted's configurations in the MIG manager's ConfigMap, and the agent's own among them.
//!
//! All configurations are one YAML text. The agent's are in a marked block, the rest of the text stays byte for byte:
//! it is the owner's, with the owner's comments. `deploy/agent/mig.yaml` holds the agent to that block.
//!
//! Source: NVIDIA/mig-parted, api/spec/v1.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comity_types::mig::Board;
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest as _, Sha256};

use super::device_layout::{DeviceLayout, ProfileCounts};

/// Prefix of the agent's configurations.
pub(crate) const OWN_PREFIX: &str = "comity-";
/// Lines around the agent's configurations, without indent: so the admission policy can tell what is outside.
const BLOCK_BEGIN: &str = "# begin of comity-agent's configurations";
const BLOCK_END: &str = "# end of comity-agent's configurations";
/// Bytes of the hash in a configuration's name.
const NAME_HASH_BYTES: usize = 6;

/// Layouts of a node's devices, by index, without the slots.
pub(crate) type NodeCounts = Vec<Option<ProfileCounts>>;

/// All configurations of a text.
#[derive(Debug, Deserialize)]
pub(crate) struct MigConfigs {
    version: String,
    #[serde(rename = "mig-configs")]
    configs: BTreeMap<String, Vec<ConfigBlock>>,
}

/// Some devices of one configuration.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ConfigBlock {
    /// PCI ids, which the agent cannot see.
    #[serde(default)]
    device_filter: Option<IgnoredAny>,
    devices: ConfigDevices,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: Option<ProfileCounts>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum ConfigDevices {
    Listed(Vec<usize>),
    /// "all".
    Named(String),
}

impl ConfigBlock {
    /// Whether it may be meant for a device: a filter is taken to let it pass if the board has all profiles.
    fn may_apply(&self, device: usize, board: Board) -> bool {
        let listed = match &self.devices {
            ConfigDevices::Listed(devices) => devices.contains(&device),
            ConfigDevices::Named(name) => name == "all",
        };
        let profiles = || self.mig_devices.iter().flatten();
        listed && (self.device_filter.is_none() || profiles().all(|(profile, _)| board.shape(profile).is_some()))
    }

    fn counts(&self) -> Option<ProfileCounts> {
        let counted = |(profile, count): (&String, &u32)| (*count > 0).then(|| (profile.clone(), *count));
        self.mig_enabled.then(|| self.mig_devices.iter().flatten().filter_map(counted).collect())
    }
}

impl MigConfigs {
    /// Reads a text; an error is one sentence.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let read: Self =
            serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string().replace('\n', " "))?;
        match read.version.as_str() {
            "v1" => Ok(read),
            version => Err(format!("version {version:?} is unknown; this agent reads v1")),
        }
    }

    /// The counts of a node's devices under a configuration; an error is one sentence.
    pub(crate) fn counts(&self, name: &str, gpus: usize, board: Board) -> Result<NodeCounts, String> {
        let blocks = self.configs.get(name).ok_or_else(|| format!("the ConfigMap has no configuration {name:?}"))?;
        let device = |device: usize| {
            let applying: BTreeSet<Option<ProfileCounts>> =
                blocks.iter().filter(|block| block.may_apply(device, board)).map(ConfigBlock::counts).collect();
            let mut applying = applying.into_iter();
            match (applying.next(), applying.next()) {
                (Some(counts), None) => Ok(counts),
                (None, _) => Err(format!("configuration {name:?} says nothing of device {device}")),
                (Some(_), Some(_)) => Err(format!("configuration {name:?} has several layouts for device {device}")),
            }
        };
        (0..gpus).map(device).collect()
    }

    /// Number of configurations.
    pub(crate) fn number(&self) -> usize {
        self.configs.len()
    }

    /// Names of the agent's own configurations.
    pub(crate) fn own_names(&self) -> impl Iterator<Item = &str> {
        self.configs.keys().map(String::as_str).filter(|name| name.starts_with(OWN_PREFIX))
    }

    /// The configurations of others, by name.
    fn others(&self) -> impl Iterator<Item = (&String, &Vec<ConfigBlock>)> {
        self.configs.iter().filter(|(name, _)| !name.starts_with(OWN_PREFIX))
    }

    /// The lines of a configuration of the agent, if the text has it.
    fn own_lines(&self, name: &str, indent: usize) -> Option<String> {
        let blocks = self.configs.get(name)?;
        let mut devices: Vec<(usize, Option<ProfileCounts>)> = Vec::new();
        for block in blocks {
            let ConfigDevices::Listed(listed) = &block.devices else { return None };
            devices.extend(listed.iter().map(|device| (*device, block.counts())));
        }
        devices.sort_by_key(|(device, _)| *device);
        let counts: NodeCounts = devices.into_iter().map(|(_, counts)| counts).collect();
        Some(lines(name, &counts, indent))
    }
}

/// The counts of layouts.
pub(crate) fn node_counts(layouts: &[DeviceLayout]) -> NodeCounts {
    layouts.iter().map(DeviceLayout::counts).collect()
}

/// The name of the configuration with these counts: equal counts have one name.
pub(crate) fn own_name(counts: &NodeCounts) -> String {
    let hash = Sha256::digest(lines("", counts, 0).as_bytes());
    let mut name = OWN_PREFIX.to_owned();
    for byte in &hash[..NAME_HASH_BYTES] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// A configuration as YAML.
fn lines(name: &str, counts: &NodeCounts, indent: usize) -> String {
    let mut alike: Vec<(&Option<ProfileCounts>, Vec<String>)> = Vec::new();
    for (device, counts) in counts.iter().enumerate() {
        match alike.iter_mut().find(|(of, _)| *of == counts) {
            Some((_, devices)) => devices.push(device.to_string()),
            None => alike.push((counts, vec![device.to_string()])),
        }
    }
    let pad = " ".repeat(indent);
    let mut text = format!("{pad}{name}:\n");
    for (counts, devices) in alike {
        let _ = writeln!(text, "{pad}  - devices: [{}]", devices.join(", "));
        let _ = writeln!(text, "{pad}    mig-enabled: {}", counts.is_some());
        match counts {
            None => {}
            Some(counts) if counts.is_empty() => {
                let _ = writeln!(text, "{pad}    mig-devices: {{}}");
            }
            Some(counts) => {
                let _ = writeln!(text, "{pad}    mig-devices:");
                for (profile, count) in counts {
                    let _ = writeln!(text, "{pad}      \"{profile}\": {count}");
                }
            }
        }
    }
    text
}

/// Adds the configuration `counts` to the agent's own, and removes those that are not in `kept`. Returns the text and the
/// configuration's name; an error is one sentence.
pub(crate) fn with_own(text: &str, counts: &NodeCounts, kept: &BTreeSet<String>) -> Result<(String, String), String> {
    let before = MigConfigs::read(text)?;
    let name = own_name(counts);
    let (head, tail, indent) = around_block(text)?;
    let stays = before.own_names().filter(|own| *own != name && kept.contains(*own));
    let mut block: String = stays.filter_map(|own| before.own_lines(own, indent)).collect();
    block.push_str(&lines(&name, counts, indent));
    let text = format!("{head}{BLOCK_BEGIN}\n{block}{BLOCK_END}\n{tail}");
    let after = MigConfigs::read(&text)?;
    if !before.others().eq(after.others()) || !after.configs.contains_key(&name) {
        return Err("the text cannot be changed without a change of other configurations".to_owned());
    }
    Ok((text, name))
}

/// The text before and after the agent's block, and the indent of configurations. Without a block the agent's place is
/// right below `mig-configs:`.
fn around_block(text: &str) -> Result<(String, String, usize), String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let at = |marker: &str| lines.iter().position(|line| line.trim_end() == marker);
    let top = lines.iter().position(|line| line.trim_end() == "mig-configs:");
    let top = top.ok_or("it has no line `mig-configs:` with the configurations below it")?;
    if !lines[top].ends_with('\n') {
        return Err("it has no configuration".to_owned());
    }
    let is_content = |line: &&&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let first = lines[top + 1..].iter().find(is_content).map_or(0, |line| line.len() - line.trim_start().len());
    if first == 0 {
        return Err("configurations below `mig-configs:` are not indented".to_owned());
    }
    let (begin, end) = match (at(BLOCK_BEGIN), at(BLOCK_END)) {
        (None, None) => (top + 1, top + 1),
        (Some(begin), Some(end)) if top < begin && begin < end => (begin, end + 1),
        _ => return Err("the lines around the agent's configurations are damaged; remove all of that block".to_owned()),
    };
    Ok((lines[..begin].concat(), lines[end..].concat(), first))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    const OWNERS: &str = r#"# ours
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-balanced: # for every board
    - device-filter: ["0x20B010DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.5gb": 2
        "3g.20gb": 1
    - device-filter: ["0x233010DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "3g.40gb": 1
  one:
    - devices: [0]
      mig-enabled: true
      mig-devices: {}
    - devices: [1]
      mig-enabled: false
"#;

    fn h100() -> Board {
        Board::of("NVIDIA-H100-80GB-HBM3", 81_559).unwrap()
    }

    fn cut(list: &[(&str, u32)]) -> Option<ProfileCounts> {
        Some(list.iter().map(|(profile, count)| ((*profile).to_owned(), *count)).collect())
    }

    #[test]
    fn the_counts_of_each_device_are_read() {
        let configs = MigConfigs::read(OWNERS).unwrap();
        assert_eq!(configs.counts("all-disabled", 2, h100()), Ok(vec![None, None]));
        assert_eq!(configs.counts("one", 2, h100()), Ok(vec![cut(&[]), None]));
        let balanced = cut(&[("1g.10gb", 2), ("3g.40gb", 1)]);
        assert_eq!(configs.counts("all-balanced", 1, h100()), Ok(vec![balanced]), "the other block is another board's");
        for (name, gpus, word) in [("none", 1, "no configuration \"none\""), ("one", 3, "nothing of device 2")] {
            let error = configs.counts(name, gpus, h100()).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(MigConfigs::read("version: v2\nmig-configs: {}").unwrap_err().contains("\"v2\""));
        assert!(MigConfigs::read("a: [").is_err());
    }

    #[test]
    fn the_owners_text_stays_as_it_is() {
        let first = vec![cut(&[("3g.40gb", 2)]), None, cut(&[("3g.40gb", 2)])];
        let (text, name) = with_own(OWNERS, &first, &BTreeSet::new()).unwrap();
        let (head, block) = text.split_once("# begin of").unwrap();
        let (block, tail) = block.split_once("# end of comity-agent's configurations\n").unwrap();
        assert_eq!(format!("{head}{tail}"), OWNERS);
        assert!(block.contains(&format!("  {name}:\n    - devices: [0, 2]\n")), "{block}");
        assert_eq!(MigConfigs::read(&text).unwrap().counts(&name, 3, h100()), Ok(first.clone()));
        assert_eq!(with_own(&text, &first, &BTreeSet::new()).unwrap(), (text.clone(), name.clone()), "twice is once");

        let second = vec![cut(&[]), None, cut(&[("1g.10gb+me", 1)])];
        let (both, other) = with_own(&text, &second, &BTreeSet::from([name.clone()])).unwrap();
        let configs = MigConfigs::read(&both).unwrap();
        assert_eq!(configs.counts(&name, 3, h100()), Ok(first), "a configuration in use stays");
        assert_eq!(configs.counts(&other, 3, h100()), Ok(second.clone()));
        let (only, _) = with_own(&both, &second, &BTreeSet::new()).unwrap();
        assert_eq!(MigConfigs::read(&only).unwrap().own_names().collect::<Vec<_>>(), [other]);
    }

    #[test]
    fn texts_of_the_mig_manager() {
        let counts = vec![cut(&[("3g.40gb", 2)]), None];
        let (with_block, name) = with_own(OWNERS, &counts, &BTreeSet::new()).unwrap();
        let valid = [OWNERS.to_owned(), with_block].map(String::into_bytes).to_vec();
        let board = h100();
        fuzz!("mig_configs", valid, move |bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return false };
            let Ok(before) = MigConfigs::read(text) else { return false };
            for name in before.configs.keys() {
                let read = before.counts(name, 2, board);
                assert!(read.is_err() || read.is_ok_and(|counts| counts.len() == 2), "each device has its counts");
            }
            let Ok((text, own)) = with_own(text, &counts, &BTreeSet::from([name.clone()])) else { return false };
            let after = MigConfigs::read(&text).expect("what the agent writes can be read");
            assert_eq!((own.as_str(), after.counts(&own, 2, board)), (name.as_str(), Ok(counts.clone())));
            assert!(after.others().eq(before.others()), "the owner's configurations stay");
            true
        });
    }

    #[test]
    fn a_text_of_another_form_is_refused_and_never_rewritten() {
        for (text, word) in [
            ("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n", "no line `mig-configs:`"),
            ("version: v1\nmig-configs:\n- a\n", ""),
            (&format!("{OWNERS}# begin of comity-agent's configurations\n"), "damaged"),
        ] {
            let error = with_own(text, &vec![None], &BTreeSet::new()).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
