//! Answers from a function's control flow: the order of blocks in memory says little about loops.

use super::listing::{matches, Instruction};
use petgraph::algo::dominators::simple_fast;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::Incoming;
use std::collections::{BTreeSet, HashMap};

/// The blocks of a function, each as the range of its instructions, and where control goes from each.
type Flow = DiGraph<std::ops::Range<usize>, ()>;

/// The instructions of each loop that has an instruction that `is_main`, and no loop inside that has one.
pub fn innermost<'a>(code: &'a [Instruction], is_main: &dyn Fn(&str) -> bool) -> Vec<Vec<&'a str>> {
    let Some(flow) = flow(code) else { return Vec::new() };
    let found = innermost_of(code, &flow, is_main);
    if found.is_empty() {
        return innermost_of(code, &meeting_by_dominators(code, flow), is_main);
    }
    found
}

fn innermost_of<'a>(code: &'a [Instruction], flow: &Flow, is_main: &dyn Fn(&str) -> bool) -> Vec<Vec<&'a str>> {
    let names = |block: NodeIndex| code[flow[block].clone()].iter().map(|instruction| instruction.name.as_str());
    let mut loops = loops(flow);
    loops.retain(|blocks| blocks.iter().any(|&block| names(block).any(is_main)));
    let is_innermost =
        |of: &&BTreeSet<NodeIndex>| !loops.iter().any(|other| other.len() < of.len() && other.is_subset(of));
    let innermost: BTreeSet<&BTreeSet<NodeIndex>> = loops.iter().filter(is_innermost).collect();
    innermost.into_iter().map(|blocks| blocks.iter().copied().flat_map(names).collect()).collect()
}

/// The first instruction that `is_load` and that control reaches without an instruction that `waits`.
pub fn reached_before<'a>(
    code: &'a [Instruction],
    waits: &dyn Fn(&str) -> bool,
    is_load: &dyn Fn(&str) -> bool,
) -> Option<&'a str> {
    let flow = flow(code)?;
    let (mut seen, mut open) = (BTreeSet::new(), vec![NodeIndex::new(0)]);
    while let Some(block) = open.pop() {
        if !seen.insert(block) {
            continue;
        }
        let before = code[flow[block].clone()].iter().map(|instruction| instruction.name.as_str());
        match before.clone().find(|name| waits(name) || is_load(name)) {
            Some(name) if is_load(name) => return Some(name),
            Some(_) => {}
            None => open.extend(flow.neighbors(block)),
        }
    }
    None
}

/// The natural loop of each edge that goes back to a block that dominates the edge's start.
fn loops(flow: &Flow) -> Vec<BTreeSet<NodeIndex>> {
    let dominators = simple_fast(flow, NodeIndex::new(0));
    let goes_back = |&(from, to): &(NodeIndex, NodeIndex)| {
        dominators.dominators(from).is_some_and(|mut above| above.any(|block| block == to))
    };
    let edges = flow.edge_indices().filter_map(|edge| flow.edge_endpoints(edge));
    edges
        .filter(goes_back)
        .map(|(from, to)| {
            let mut body = BTreeSet::from([to]);
            let mut open = vec![from];
            while let Some(block) = open.pop() {
                if body.insert(block) {
                    open.extend(flow.neighbors_directed(block, Incoming));
                }
            }
            body
        })
        .collect()
}

/// `None`: there is no code.
fn flow(code: &[Instruction]) -> Option<Flow> {
    code.first()?;
    let at: HashMap<u32, usize> =
        code.iter().enumerate().map(|(index, instruction)| (instruction.address, index)).collect();
    let target = |instruction: &Instruction| instruction.target.and_then(|to| at.get(&to).copied());
    let starts: BTreeSet<usize> = code
        .iter()
        .enumerate()
        .flat_map(|(index, instruction)| [target(instruction), instruction.ends_block().then_some(index + 1)])
        .flatten()
        .chain([0])
        .filter(|&start| start < code.len())
        .collect();
    let mut flow = Flow::new();
    let mut block_at = HashMap::new();
    let ends = starts.iter().skip(1).copied().chain([code.len()]);
    for (&start, end) in starts.iter().zip(ends) {
        block_at.insert(start, flow.add_node(start..end));
    }
    for block in flow.node_indices() {
        let end = flow[block].end;
        let last = &code[end - 1];
        let mut next: Vec<usize> = if last.is_branch() { target(last).into_iter().collect() } else { Vec::new() };
        if matches(&last.name, "BSYNC") {
            // Threads that have met at a barrier go on where the instruction that set the barrier up says.
            let sets_up =
                |instruction: &&Instruction| matches(&instruction.name, "BSSY") && instruction.barrier == last.barrier;
            next.extend(code[..end].iter().rfind(sets_up).and_then(target));
        }
        next.extend((last.falls_through() && end < code.len()).then_some(end));
        for to in next {
            flow.update_edge(block, block_at[&to], ());
        }
    }
    // The listing does not say where an indirect branch goes: to the blocks that nothing else leads to.
    let is_indirect = |block: &NodeIndex| code[flow[*block].end - 1].name.starts_with("BRX");
    let indirect: Vec<NodeIndex> = flow.node_indices().filter(is_indirect).collect();
    let orphans: Vec<NodeIndex> = flow.externals(Incoming).filter(|block| block.index() != 0).collect();
    for (&from, &to) in indirect.iter().flat_map(|from| orphans.iter().map(move |to| (from, to))) {
        flow.update_edge(from, to, ());
    }
    Some(flow)
}

/// `flow` where each BSYNC goes on where the last BSSY that dominates it says. The last one in memory may stand in rare
/// code that not every way to the meeting passes: an edge into that code hides the loops around it.
fn meeting_by_dominators(code: &[Instruction], flow: Flow) -> Flow {
    let dominators = simple_fast(&flow, NodeIndex::new(0));
    let mut corrected = flow.clone();
    for block in flow.node_indices() {
        let last = &code[flow[block].end - 1];
        if !matches(&last.name, "BSYNC") {
            continue;
        }
        let sets_up = |block: NodeIndex| {
            let is_setup = |i: &&Instruction| matches(&i.name, "BSSY") && i.barrier == last.barrier;
            code[flow[block].clone()].iter().rfind(is_setup)?.target
        };
        let above = dominators.dominators(block).into_iter().flatten();
        let Some(to) = above.filter(|above| flow[*above].start < flow[block].end).find_map(sets_up) else { continue };
        let Some(to) = flow.node_indices().find(|&at| code[flow[at].start].address == to) else { continue };
        let falls_to = |next: &NodeIndex| last.falls_through() && flow[*next].start == flow[block].end;
        for next in flow.neighbors(block).filter(|next| !falls_to(next)) {
            corrected.find_edge(block, next).map(|edge| corrected.remove_edge(edge));
        }
        corrected.update_edge(block, to, ());
    }
    corrected
}
