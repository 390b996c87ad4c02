#include "cli/cli.h"

int main(int argc, char** argv) { return mr::run_command_line(argc, argv); }
