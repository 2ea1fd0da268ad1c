//! How the arrays of a capture are called, and how they lie: as the graph
//! calls them, or as an engine does whose names a map translates.

use super::map::{LAYER, Rule, in_layer};
use crate::input;
use crate::shard::Shard;
use anyhow::{Context as _, Result, ensure};
use qdiff_engine::model::{Graph, Node, StageId};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A stage by some array name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Index of the node in the graph.
    pub node: usize,
    /// The line of the map that says so; `None` for the graph's own name.
    pub(super) rule: Option<usize>,
    /// Which of the line's arrays this is.
    pub(super) part: usize,
}

/// The stages of a graph by array name.
#[derive(Debug)]
pub struct Names {
    /// By rank, where the graph is cut, and by name.
    by_name: HashMap<(Option<u16>, String), Vec<Named>>,
    pub(super) rules: Vec<Rule>,
    /// Arrays of integers that say where others' elements are.
    pub(super) tables: HashSet<String>,
    /// Whether a map is in use: then other arrays are the engine's own affair.
    pub mapped: bool,
    /// What is read, where that is not everything.
    pub(super) only: Option<Only>,
}

/// The part of a capture that is read.
#[derive(Clone, Debug)]
pub(super) struct Only {
    /// Which part of the work it is for.
    shard: Shard,
    /// Nodes of the graph.
    nodes: HashSet<usize>,
}

impl Names {
    /// The graph's own names.
    pub fn of(graph: &Graph) -> Self {
        let nodes = graph.nodes.iter().enumerate();
        let own = |(node, n): (usize, &Node)| {
            ((n.id.rank, n.id.whole().to_string()), vec![Named { node, rule: None, part: 0 }])
        };
        Self { by_name: nodes.map(own).collect(), rules: Vec::new(), tables: HashSet::new(), mapped: false, only: None }
    }

    /// The graph's own names, and those of the map in the file `path`, a line for each stage: `THEIRS = OURS`, with `{L}`
    /// for the layer's number, what is taken of an array where it is not all of it, and after a colon the order of axes
    /// and how several arrays become one:
    ///
    /// ```text
    /// # theirs                             = ours
    /// model.layers.{L}.self_attn.q_rotated = q_rope : 1,0,2
    /// lm_head                              = logits
    /// qkv.{L}[:, 0:896]                    = q_biased
    /// rank{0..1}/gate.{L}                  = ffn_gate : join 1
    /// ```
    ///
    /// A stage that is repeated per layer is named without its layer.
    ///
    /// # Errors
    /// A file that cannot be read; a line that is none of that, names a stage
    /// that the model does not have, or says of an array what another line has said.
    pub fn read(graph: &Graph, path: &Path) -> Result<Self> {
        let text = input::text(path, input::TEXT).with_context(|| format!("cannot read the map {}", path.display()))?;
        let mut names = Self::of(graph);
        names.mapped = true;
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                names.line(graph, i + 1, line).with_context(|| format!("{} line {}", path.display(), i + 1))?;
            }
        }
        names.add_two_digits(graph);
        Ok(names)
    }

    /// What the map calls by the number of a layer is also taken by that number in two digits, unless a line names that.
    fn add_two_digits(&mut self, graph: &Graph) {
        let of_map = self.by_name.values().flatten().filter_map(|named| {
            let (id, rule) = (graph.nodes[named.node].id, &self.rules[named.rule?]);
            let name = |digits| in_layer(&rule.arrays[named.part], id.layer, digits);
            (name(2) != name(1)).then(|| ((id.rank, name(2)), named.clone()))
        });
        let mut padded: HashMap<(Option<u16>, String), Vec<Named>> = HashMap::new();
        of_map.for_each(|(name, named)| padded.entry(name).or_default().push(named));
        for (name, all) in padded {
            let known = self.by_name.entry(name).or_default();
            if known.iter().all(|named| named.rule.is_none()) {
                *known = all;
            }
        }
    }

    fn line(&mut self, graph: &Graph, number: usize, line: &str) -> Result<()> {
        let mut rule = Rule::parse(line)?;
        rule.said = format!("line {number} of the map, `{}`", rule.said);
        let ours = &rule.stage;
        let stages: Vec<(usize, StageId)> =
            graph.nodes.iter().enumerate().filter(|(_, n)| n.id.name == ours).map(|(i, n)| (i, n.id)).collect();
        ensure!(!stages.is_empty(), "no stage is called `{ours}`; the stages are: {}", graph.stage_names().join(" "));
        for (node, id) in stages {
            for (part, theirs) in rule.arrays.iter().enumerate() {
                ensure!(
                    id.layer.is_none() || theirs.contains(LAYER),
                    "`{ours}` is in every layer, and `{theirs}` has no {LAYER} for its number"
                );
                let name = in_layer(theirs, id.layer, 1);
                // One array may be several stages: each takes its part. What the map says of a name goes before the graph's.
                let all = self.by_name.entry((id.rank, name.clone())).or_default();
                all.retain(|n| n.rule.is_some());
                ensure!(all.iter().all(|n| n.node != node), "`{name}` is {id} already");
                all.push(Named { node, rule: Some(self.rules.len()), part });
            }
            let tables = rule.tables().into_iter();
            self.tables.extend(tables.flat_map(|table| [1, 2].map(|digits| in_layer(table, id.layer, digits))));
        }
        self.rules.push(rule);
        Ok(())
    }

    /// The same, but of no other stages than these are arrays read: those that `shard` of the work needs.
    pub fn only(self, graph: &Graph, shard: Shard, stages: &HashSet<StageId>) -> Self {
        let nodes = graph.nodes.iter().enumerate().filter(|(_, n)| stages.contains(&n.id)).map(|(i, _)| i).collect();
        Self { only: Some(Only { shard, nodes }), ..self }
    }

    /// The part of the work for which arrays are read, where that is not all of it.
    pub(super) fn part(&self) -> Option<Shard> {
        self.only.as_ref().map(|only| only.shard)
    }

    /// Whether what an array holds of these stages is read.
    pub(super) fn wants(&self, all: &[Named]) -> bool {
        self.only.as_ref().is_none_or(|only| all.iter().any(|named| only.nodes.contains(&named.node)))
    }

    /// The stages that an array called `name` belongs to; of a rank, where the graph is cut.
    pub fn get(&self, rank: Option<u16>, name: &str) -> Option<&[Named]> {
        self.by_name.get(&(rank, name.to_owned())).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::Names;
    use qdiff_engine::model::{ARCHITECTURES, skeleton};

    /// Stages of an array by a map.
    fn stages(map: &str, array: &str) -> Vec<String> {
        let graph = skeleton(ARCHITECTURES[0].1, 11);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("map"), map).unwrap();
        let names = Names::read(&graph, &folder.path().join("map")).unwrap();
        let found = names.get(None, array).unwrap_or_default();
        found.iter().map(|named| graph.nodes[named.node].id.to_string()).collect()
    }

    /// Layers have one digit or two; a line that names an array goes before one that only fits it by two digits.
    #[test]
    fn a_layer_may_have_two_digits() {
        for array in ["x.3", "x.03"] {
            assert_eq!(stages("x.{L} = q_rope", array), ["L03.q_rope"], "{array}");
        }
        assert_eq!(stages("x.{L} = q_rope", "x.10"), ["L10.q_rope"]);
        assert_eq!(stages("L{L}.q_rope = q_rope : 1,0,2", "L03.q_rope"), ["L03.q_rope"]);
        for map in ["x.{L} = q_rope\nx.0{L} = k_rope", "x.0{L} = k_rope\nx.{L} = q_rope"] {
            assert_eq!(stages(map, "x.03"), ["L03.k_rope"], "{map}");
            assert_eq!(stages(map, "x.3"), ["L03.q_rope"], "{map}");
        }
    }
}
