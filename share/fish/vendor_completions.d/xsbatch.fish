# fish completion of xsbatch, written by `xmem-slurm completion fish`
complete -c xsbatch -l xmem-dry-run -d 'print the script that would be submitted; submit nothing'
complete -c xsbatch -l xmem-off -d 'submit the job as written, without an estimate'
complete -c xsbatch -l xmem-keep-type -d 'do not change a GPU type that the request names'
complete -c xsbatch -l xmem-raise-mem -d 'raise --mem if the job was seen to hold more host memory than it requests'
complete -c xsbatch -l xmem-plan -d 'train it the best way that fits this site\'s GPUs; says what that changes'
complete -c xsbatch -l xmem-hold -d 'submit the job held if it could not be sized'
complete -c xsbatch -l xmem-strict -d 'do not submit a job that would fail on every node, or will run out of GPU memory'
complete -c xsbatch -l xmem-fresh -d 'do the dry run again even if nothing has changed since the last one'
complete -c xsbatch -l xmem-record -d 'record what the job really uses of its GPUs, in your state folder'
complete -c xsbatch -l xmem-summary -d 'record it, and end the job\'s output with what was estimated and used'
complete -c xsbatch -l xmem-retry -x -d 'if it runs out of GPU memory, try larger GPUs: a new job each time (0)'
complete -c xsbatch -l xmem-verbose -d 'show what the memory is used for, and how sure the estimate is'
complete -c xsbatch -l xmem-policy -x -a 'cost memory start' -d 'which of the GPUs that fit: the cheapest, the smallest, or the first to be free'
complete -c xsbatch -l xmem-budget -x -d 'CPU seconds that the dry runs may take (60)'
complete -c xsbatch -l xmem-margin -x -d 'percent of each GPU\'s memory to leave free, in addition to the margin (0)'
complete -c xsbatch -l xmem-engine -x -a 'auto device profile' -d 'how to do the dry run: device (stand-in CUDA), profile (real steps on the CPU), auto'
complete -c xsbatch -l xmem-ranks -x -d 'ranks to run in addition to rank 0: all, last, or a list (0,3)'
complete -c xsbatch -l xmem-array-tasks -x -d 'array tasks to run, instead of those chosen automatically: 7 or 1,5'
complete -c xsbatch -l xmem-site -r -d 'site file; default: /etc/xmem-slurm/site.toml, ~/.config/xmem-slurm/site.toml'
complete -c xsbatch -l xmem-report -r -d 'write a report: .html, .pickle (torch\'s snapshot), .trace.json (Perfetto), or JSON'
complete -c xsbatch -l xmem-html -x -d 'write charts and tables to one HTML file'
complete -c xsbatch -l account -s A -x
complete -c xsbatch -l acctg-freq -x
complete -c xsbatch -l array -s a -x
complete -c xsbatch -l autocomplete -x
complete -c xsbatch -l batch -r
complete -c xsbatch -l bb -x
complete -c xsbatch -l bbf -r
complete -c xsbatch -l begin -s b -x
complete -c xsbatch -l chdir -s D -r
complete -c xsbatch -l cluster -x
complete -c xsbatch -l cluster-constraint -x
complete -c xsbatch -l clusters -s M -x
complete -c xsbatch -l comment -x
complete -c xsbatch -l consolidate-segments
complete -c xsbatch -l constraint -s C -x -a "(sinfo --noheader --format=%f | tr , '\n' 2>/dev/null)"
complete -c xsbatch -l container -r
complete -c xsbatch -l container-id -x
complete -c xsbatch -l container-type -x
complete -c xsbatch -l context -x
complete -c xsbatch -l contiguous
complete -c xsbatch -l core-spec -s S -x
complete -c xsbatch -l cores-per-socket -x
complete -c xsbatch -l cpu-freq -x
complete -c xsbatch -l cpus-per-gpu -x
complete -c xsbatch -l cpus-per-task -s c -x
complete -c xsbatch -l deadline -x
complete -c xsbatch -l delay-boot -x
complete -c xsbatch -l dependency -s d -x
complete -c xsbatch -l distribution -s m -x
complete -c xsbatch -l error -s e -r
complete -c xsbatch -l exclude -s x -x -a "(sinfo --noheader --Node --format=%N 2>/dev/null)"
complete -c xsbatch -l exclusive
complete -c xsbatch -l export -x
complete -c xsbatch -l export-file -r
complete -c xsbatch -l external
complete -c xsbatch -l extra -x
complete -c xsbatch -l extra-node-info -s B -x
complete -c xsbatch -l get-user-env
complete -c xsbatch -l gid -x
complete -c xsbatch -l gpu-bind -x
complete -c xsbatch -l gpu-freq -x
complete -c xsbatch -l gpus -s G -x
complete -c xsbatch -l gpus-per-node -x
complete -c xsbatch -l gpus-per-socket -x
complete -c xsbatch -l gpus-per-task -x
complete -c xsbatch -l gres -x
complete -c xsbatch -l gres-flags -x
complete -c xsbatch -l help -s h
complete -c xsbatch -l hint -x
complete -c xsbatch -l hold -s H
complete -c xsbatch -l ignore-pbs
complete -c xsbatch -l input -s i -r
complete -c xsbatch -l job-name -s J -x
complete -c xsbatch -l kill-on-invalid-dep -x
complete -c xsbatch -l licenses -s L -x
complete -c xsbatch -l mail-type -x
complete -c xsbatch -l mail-user -x
complete -c xsbatch -l mcs-label -x
complete -c xsbatch -l mem -x
complete -c xsbatch -l mem-bind -x
complete -c xsbatch -l mem-per-cpu -x
complete -c xsbatch -l mem-per-gpu -x
complete -c xsbatch -l mincpus -x
complete -c xsbatch -l network -x
complete -c xsbatch -l nice
complete -c xsbatch -l no-kill -s k
complete -c xsbatch -l no-requeue
complete -c xsbatch -l nodefile -s F -r
complete -c xsbatch -l nodelist -s w -x -a "(sinfo --noheader --Node --format=%N 2>/dev/null)"
complete -c xsbatch -l nodes -s N -x
complete -c xsbatch -l ntasks -s n -x
complete -c xsbatch -l ntasks-per-core -x
complete -c xsbatch -l ntasks-per-gpu -x
complete -c xsbatch -l ntasks-per-node -x
complete -c xsbatch -l ntasks-per-socket -x
complete -c xsbatch -l ntasks-per-tres -x
complete -c xsbatch -l oom-kill-step
complete -c xsbatch -l open-mode -x
complete -c xsbatch -l output -s o -r
complete -c xsbatch -l overcommit -s O
complete -c xsbatch -l oversubscribe -s s
complete -c xsbatch -l parsable
complete -c xsbatch -l partition -s p -x -a "(sinfo --noheader --format=%R 2>/dev/null)"
complete -c xsbatch -l prefer -x
complete -c xsbatch -l priority -x
complete -c xsbatch -l profile -x
complete -c xsbatch -l propagate
complete -c xsbatch -l qos -s q -x
complete -c xsbatch -l quiet -s Q
complete -c xsbatch -l reboot
complete -c xsbatch -l requeue
complete -c xsbatch -l reservation -x -a "(scontrol --oneliner show reservation | sed -n 's/^ReservationName=\([^ ]*\).*/\1/p' 2>/dev/null)"
complete -c xsbatch -l resources -x
complete -c xsbatch -l resv-ports
complete -c xsbatch -l segment -x
complete -c xsbatch -l signal -x
complete -c xsbatch -l sockets-per-node -x
complete -c xsbatch -l spread-job
complete -c xsbatch -l spread-segments
complete -c xsbatch -l stepmgr
complete -c xsbatch -l switches -x
complete -c xsbatch -l tasks-per-node -x
complete -c xsbatch -l test-only
complete -c xsbatch -l thread-spec -x
complete -c xsbatch -l threads-per-core -x
complete -c xsbatch -l time -s t -x
complete -c xsbatch -l time-min -x
complete -c xsbatch -l tmp -x
complete -c xsbatch -l tres-bind -x
complete -c xsbatch -l tres-per-task -x
complete -c xsbatch -l uid -x
complete -c xsbatch -l usage
complete -c xsbatch -l use-min-nodes
complete -c xsbatch -l verbose -s v
complete -c xsbatch -l version -s V
complete -c xsbatch -l wait -s W
complete -c xsbatch -l wait-all-nodes -x
complete -c xsbatch -l wckey -x
complete -c xsbatch -l wrap -x
