// Peer of bench/simulator.py: simulates a workflow with given placement in SimGrid. bench/simulator.py writes the input.
//
// Lines of the input: `hosts COUNT CORES LINK_BYTES_PER_SEC LINK_LATENCY_S`, then `task HOST SECONDS` (numbered from 0)
// and `edge FROM TO BYTES`, where BYTES is -1 if both ends are on one host. Prints a JSON line.
//
//   g++ -O2 -std=c++17 bench/simgrid/peer.cpp -lsimgrid -o peer && ./peer workflow.txt
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

static double seconds_since(std::chrono::steady_clock::time_point begin)
{
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int main(int argc, char* argv[])
{
  sg4::Engine engine(&argc, argv);
  std::ifstream in(argv[1]);
  auto begin = std::chrono::steady_clock::now();
  std::vector<sg4::Host*> hosts;
  std::vector<sg4::ExecPtr> execs;
  std::vector<sg4::CommPtr> comms;
  // A file that several tasks of a host read is transferred to that host once.
  std::map<std::pair<long, long>, sg4::CommPtr> moved;
  std::string word;
  while (in >> word) {
    if (word == "hosts") {
      int count = 0, cores = 0;
      double rate = 0, latency = 0;
      in >> count >> cores >> rate >> latency;
      auto* zone = sg4::create_star_zone("cluster");
      for (int i = 0; i < count; i++) {
        auto* host = zone->create_host("e" + std::to_string(i), 1.0)->set_core_count(cores);
        auto* up   = zone->create_link("up" + std::to_string(i), rate)->set_latency(latency);
        auto* down = zone->create_link("down" + std::to_string(i), rate)->set_latency(latency);
        zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {sg4::LinkInRoute(up)}, false);
        zone->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, {sg4::LinkInRoute(down)}, false);
        hosts.push_back(host);
      }
      zone->seal();
    } else if (word == "task") {
      long host = 0;
      double run = 0;
      in >> host >> run;
      execs.push_back(sg4::Exec::init()->set_flops_amount(run)->set_host(hosts.at(host)));
    } else {
      long from = 0, to = 0, bytes = 0;
      in >> from >> to >> bytes;
      if (bytes < 0) {
        execs.at(from)->add_successor(execs.at(to));
        continue;
      }
      auto* target = execs.at(to)->get_host();
      auto& comm   = moved[{from, std::stol(target->get_name().substr(1))}];
      if (not comm) {
        comm = sg4::Comm::sendto_init(execs.at(from)->get_host(), target)->set_payload_size(bytes);
        execs.at(from)->add_successor(comm);
        comms.push_back(comm);
      }
      comm->add_successor(execs.at(to));
    }
  }
  double read_s = seconds_since(begin);
  begin         = std::chrono::steady_clock::now();
  for (const auto& exec : execs)
    exec->vetoable_start();
  for (const auto& comm : comms)
    comm->vetoable_start();
  engine.run();
  std::cout << "{\"read_s\": " << read_s << ", \"run_s\": " << seconds_since(begin)
            << ", \"makespan_s\": " << sg4::Engine::get_clock() << ", \"activities\": " << execs.size() + comms.size()
            << "}\n";
}
