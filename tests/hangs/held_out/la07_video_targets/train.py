import torch.distributed as dist

from roles import TEACHER, Student, run_teacher


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    students = [r for r in range(world) if r != TEACHER]
    group = dist.new_group(students)
    if rank == TEACHER:
        run_teacher(students, epochs=2)
    else:
        Student(rank, group, len(students)).run(epochs=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
