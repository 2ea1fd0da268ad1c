//! What the tests read in the JSON of a report.

use serde_json::Value;

/// A report of one run. Each function panics where it is none.
pub trait Told {
    /// Its stages, as it lists them.
    fn stages(&self) -> &[Value];
    /// Its findings.
    fn findings(&self) -> &[Value];
    /// The stage of this name.
    fn stage(&self, name: &str) -> &Value;
    /// Each stage with its status.
    fn statuses(&self) -> Vec<(&str, &str)>;
    /// The stages that are origins.
    fn origins(&self) -> Vec<&str>;
    /// Whether every requested row was judged.
    fn is_whole(&self) -> bool;
}

impl Told for Value {
    fn stages(&self) -> &[Value] {
        self["verdict"]["stages"].as_array().expect("the report of a run")
    }
    fn findings(&self) -> &[Value] {
        self["verdict"]["findings"].as_array().expect("the report of a run")
    }
    fn stage(&self, name: &str) -> &Value {
        self.stages().iter().find(|s| s["stage"] == name).unwrap_or_else(|| panic!("no stage {name}"))
    }
    fn statuses(&self) -> Vec<(&str, &str)> {
        let pair = |s| text(s, "stage").zip(text(s, "status")).expect("a stage");
        self.stages().iter().map(pair).collect()
    }
    fn origins(&self) -> Vec<&str> {
        self.stages().iter().filter(|s| s["origin"] == true).filter_map(|s| text(s, "stage")).collect()
    }
    fn is_whole(&self) -> bool {
        let coverage = &self["verdict"]["coverage"];
        coverage["asked"].is_u64() && coverage["asked"] == coverage["judged"]
    }
}

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of[key].as_str()
}
